// Shows, everywhere on the page, the results of the chosen tasks and models that contain all words of the search.
(() => {
  const { data } = charts;
  const form = document.querySelector(".filters");
  const search = document.getElementById("search");
  const said = document.getElementById("said");
  const boxes = { row: [], column: [] };
  for (const kind of Object.keys(boxes)) {
    boxes[kind] = [...form.querySelectorAll(`[data-choice="${kind}"] input`)];
  }
  const chosen = (kind) => new Set(boxes[kind].filter((box) => box.checked).map((box) => Number(box.value)));

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = chosen("row");
    const columns = chosen("column");
    const shown = data.results.filter(
      (result) => rows.has(result.row) && columns.has(result.column) && words.every((word) => result.text.includes(word)),
    );
    const ids = new Set(shown.map((result) => result.id));
    const shownRows = new Set(shown.map((result) => result.row));
    const shownColumns = new Set(shown.map((result) => result.column));
    for (const element of document.querySelectorAll("[data-result]")) {
      const out = !ids.has(element.dataset.result);
      if (element.matches("td.cell")) element.classList.toggle("out", out);
      else element.hidden = out;
    }
    for (const element of document.querySelectorAll("[data-row]")) element.hidden = !shownRows.has(Number(element.dataset.row));
    for (const element of document.querySelectorAll("[data-column]")) element.hidden = !shownColumns.has(Number(element.dataset.column));
    for (const element of document.querySelectorAll("[data-rows]")) {
      element.hidden = !element.dataset.rows.split(" ").some((row) => shownRows.has(Number(row)));
    }
    const all = data.results.length;
    form.querySelector("[type=reset]").hidden = shown.length === all;
    for (const [kind, some] of [["row", rows], ["column", columns]]) {
      const count = boxes[kind].length;
      form.querySelector(`[data-count="${kind}"]`).textContent = some.size === count ? count : `${some.size}/${count}`;
    }
    said.textContent = shown.length === all ? "" : `${shown.length} of ${all} results shown`;
    document.dispatchEvent(new CustomEvent("filtered", { detail: ids }));
  };

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter));
  form.addEventListener("click", (event) => {
    const { all, none } = event.target.dataset;
    if (!all && !none) return;
    for (const box of boxes[all ?? none]) box.checked = Boolean(all);
    filter();
  });
  // close a menu when the reader clicks outside it
  document.addEventListener("click", (event) => {
    for (const menu of form.querySelectorAll("details[open]")) if (!menu.contains(event.target)) menu.open = false;
  });
  form.addEventListener("keydown", (event) => {
    const menu = event.key === "Escape" && event.target.closest("details[open]");
    if (!menu) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
})();
