// The details of a result in a dialog; its address ends in #NAME, so that it can be linked to.
(() => {
  const dialog = document.getElementById("details");
  const named = (name) => document.querySelector(`template[data-details="${CSS.escape(name)}"]`);

  const follow = () => {
    const template = named(location.hash.slice(1));
    if (!template) {
      if (dialog.open) dialog.close();
      return;
    }
    dialog.replaceChildren(template.content.cloneNode(true));
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    dialog.querySelector("#details-title").focus();
  };
  const copy = async (button) => {
    const code = button.parentElement.querySelector("code");
    // what stands outside an open dialog is not read aloud
    const said = dialog.querySelector("[role=status]");
    try {
      await navigator.clipboard.writeText(code.textContent);
      said.textContent = "copied";
      button.firstChild.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      said.textContent = "selected; copy it by the keyboard";
      button.firstChild.textContent = "Selected";
    }
  };

  dialog.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button);
    if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
  });
  dialog.addEventListener("close", () => {
    dialog.replaceChildren();
    if (named(location.hash.slice(1))) history.replaceState(null, "", location.pathname + location.search);
  });
  document.addEventListener("click", (event) => {
    const line = event.target.closest("g[data-result]");
    if (line) location.hash = line.dataset.result;
    const link = event.target.closest("a[href^='#']");
    // the address may be this one already, after the dialog was closed by other means
    if (link && link.hash === location.hash) follow();
  });
  addEventListener("hashchange", follow);
  follow();

  // arrow keys walk over the cells of the heat map
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  document.getElementById("heat-map").addEventListener("keydown", (event) => {
    const cell = event.target.closest("td.cell");
    const step = steps[event.key];
    if (!cell || !step || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    let row = cell.parentElement;
    let index = cell.cellIndex;
    for (;;) {
      index += step[1];
      for (let i = 0; i < Math.abs(step[0]); i++) row = step[0] > 0 ? row?.nextElementSibling : row?.previousElementSibling;
      const next = row?.cells[index];
      if (!next?.classList.contains("cell")) return;
      const link = next.querySelector("a");
      if (link?.checkVisibility({ visibilityProperty: true })) {
        link.focus();
        return;
      }
    }
  });
})();
