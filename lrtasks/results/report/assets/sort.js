// Tables sorted by the buttons in their headers; rows without a value stay last.
(() => {
  const value = (row, index) => {
    const text = row.cells[index].dataset.value;
    return { text, number: text === "" ? NaN : Number(text) };
  };
  const compare = (a, b, sign) => {
    if (a.text === "" || b.text === "") return (a.text === "") - (b.text === "");
    if (!Number.isNaN(a.number) && !Number.isNaN(b.number)) return sign * (a.number - b.number);
    return sign * a.text.localeCompare(b.text, "en", { numeric: true });
  };
  const sort = (button) => {
    const header = button.closest("th");
    const table = button.closest("table");
    const now = header.getAttribute("aria-sort");
    const other = { ascending: "descending", descending: "ascending" };
    const next = other[now] ?? button.dataset.first;
    for (const one of table.querySelectorAll("th[aria-sort]")) one.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", next);
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => ({ row, value: value(row, header.cellIndex) }));
    rows.sort((a, b) => compare(a.value, b.value, next === "ascending" ? 1 : -1));
    body.append(...rows.map(({ row }) => row));
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".sort");
    if (button) sort(button);
  });
})();
