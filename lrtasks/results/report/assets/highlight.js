// The line of the model under the pointer or the keyboard focus stands out in the charts of its task.
(() => {
  const light = (event) => {
    const result = event.target.closest?.("[data-result]")?.dataset.result;
    const card = event.target.closest?.(".task-card");
    for (const chart of document.querySelectorAll(".lit")) if (!result || !card?.contains(chart)) unlight(chart);
    if (!result || !card) return;
    for (const chart of card.querySelectorAll(".chart")) {
      const lines = [...chart.querySelectorAll(".series")];
      if (!lines.some((line) => line.dataset.result === result)) continue;
      chart.classList.add("lit");
      for (const line of lines) line.classList.toggle("on", line.dataset.result === result);
    }
  };
  const unlight = (chart) => {
    chart.classList.remove("lit");
    for (const line of chart.querySelectorAll(".on")) line.classList.remove("on");
  };
  document.addEventListener("pointerover", light);
  document.addEventListener("focusin", light);
})();
