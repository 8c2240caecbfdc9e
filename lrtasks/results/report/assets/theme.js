// Dark or light: the system's choice until the reader makes one.
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => {
    button.textContent = isDark() ? "Light theme" : "Dark theme";
    document.dispatchEvent(new CustomEvent("themed"));
  };
  try {
    const kept = localStorage.getItem("lrtasks-theme");
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch {
    // no storage for pages opened this way
  }
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("lrtasks-theme", root.dataset.theme);
    } catch {
      // the choice lasts as long as the page
    }
    show();
  });
  system.addEventListener("change", show);
  show();
})();
