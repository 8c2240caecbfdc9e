// The details of a result, packed in the page, shown in a dialog; its address ends in #NAME, so that links can open it.
(() => {
  const dialog = document.getElementById("details");
  const known = new Set(charts.data.results.map((result) => result.id));
  const named = () => (known.has(location.hash.slice(1)) ? location.hash.slice(1) : null);
  let packed = null;
  const unpack = async () => {
    const bytes = Uint8Array.from(atob(document.getElementById("packed").textContent), (mark) => mark.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  };

  const follow = async () => {
    const name = named();
    if (!name) {
      if (dialog.open) dialog.close();
      const target = location.hash && document.getElementById(location.hash.slice(1));
      const card = target?.closest?.("details.task-card");
      if (card && !card.open) {
        card.open = true;
        target.scrollIntoView();
      }
      return;
    }
    packed ??= unpack();
    const content = (await packed)[name];
    if (named() !== name) return;
    dialog.innerHTML = content;
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    dialog.querySelector("#details-title").focus();
    charts.watch(dialog);
  };
  const copy = async (button) => {
    const code = button.parentElement.querySelector("code");
    // screen readers do not read text outside an open dialog
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
    if (named()) history.replaceState(null, "", location.pathname + location.search);
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    // after the dialog was closed in another way, the address may already be that of the link
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

  // mark the tables that are cut off
  const cut = new ResizeObserver((entries) => {
    for (const { target } of entries) target.classList.toggle("cut", target.scrollWidth > target.clientWidth + 1);
  });
  for (const scroll of document.querySelectorAll("main .scroll")) cut.observe(scroll);
})();
