// Tables sorted by the buttons in their headers, by the numbers that their cells show; rows without a value stay last.
(() => {
  const showScore = document.getElementById("show-score");
  const value = (row, index) => {
    const { dataset, textContent } = row.cells[index];
    const text = (showScore.checked ? dataset.score : undefined) ?? dataset.value ?? textContent.trim();
    return { text, number: text === "" ? NaN : Number(text.replaceAll(",", "")) };
  };
  const compare = (a, b, sign) => {
    if (a.text === "" || b.text === "") return (a.text === "") - (b.text === "");
    if (!Number.isNaN(a.number) && !Number.isNaN(b.number)) return sign * (a.number - b.number);
    return sign * a.text.localeCompare(b.text, "en", { numeric: true });
  };
  const order = (header) => {
    const body = header.closest("table").tBodies[0];
    const sign = header.ariaSort === "ascending" ? 1 : -1;
    const rows = [...body.rows].map((row) => ({ row, value: value(row, header.cellIndex) }));
    rows.sort((a, b) => compare(a.value, b.value, sign));
    body.append(...rows.map(({ row }) => row));
  };
  const sort = (button) => {
    const header = button.closest("th");
    const other = { ascending: "descending", descending: "ascending" };
    const next = other[header.ariaSort] ?? button.dataset.first;
    for (const one of header.closest("table").querySelectorAll("th[aria-sort]")) one.ariaSort = "none";
    header.ariaSort = next;
    order(header);
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".sort");
    if (button) sort(button);
  });
  // order a table again after its numbers have changed
  const again = (table) => {
    const header = document.querySelector(`${table} th[aria-sort$=cending]`);
    if (header) order(header);
  };
  document.querySelector(".choice").addEventListener("change", () => again("#heat-map"));
  document.addEventListener("filtered", () => again("#efficiency"));
})();
