// Dark or light theme: the system's setting, until the reader uses the button.
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
    // pages opened from a disk may have no storage
  }
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("lrtasks-theme", root.dataset.theme);
    } catch {
      // without storage, the choice lasts until the page is closed
    }
    show();
  });
  system.addEventListener("change", show);
  show();
})();
