// Charts by Vega-Lite, drawn when they come into view, and again when the theme or the filter changes.
const charts = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = new Map(data.results.map((result) => [result.id, result]));
  const palette = ["#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#eeca3b", "#ff9da6", "#79706e",
    "#9ecae9", "#ffbf79", "#88d27a", "#d6a5c9", "#fcbfd2", "#83bcb6", "#d8b5a5", "#b79a20", "#8f6bb3", "#bab0ac"];
  const drawn = new Map();
  let shown = new Set(byId.keys());

  const mean = (values) => values.reduce((sum, v) => sum + v, 0) / values.length;
  const median = (values) => {
    const sorted = values.toSorted((a, b) => a - b);
    return mean([sorted[(sorted.length - 1) >> 1], sorted[sorted.length >> 1]]);
  };
  const short = (v) => Number(v.toPrecision(3)).toLocaleString("en");
  const readable = {
    s: (v) => (v < 1 ? `${short(v * 1000)} ms` : `${short(v)} s`),
    B: (v) => {
      const power = v < 1 ? 0 : Math.min(Math.floor(Math.log2(v) / 10), 4);
      return `${short(v / 1024 ** power)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
    },
    "": (v) => Math.round(v).toLocaleString("en"),
  };
  // The axis of a cost in a chart, by the cost's unit.
  const axes = {
    s: { unit: " (ms)", size: 0.001, format: ",.3~r" },
    B: { unit: " (bytes)", size: 1, format: "~s" },
    "": { unit: "", size: 1, format: "~s" },
  };
  const cost = (name, value) => readable[data.costs[name]](value);

  // Mean scaled score of each model over the shown tasks on which at least half of the models were run. A model without a
  // scaled score on one of them has no mean, because its mean would cover other tasks than the means of the others.
  const summary = (only) => {
    const here = data.results.filter((r) => shown.has(r.id) && (only ?? r.row) === r.row);
    const tried = new Map();
    for (const { row } of here) tried.set(row, (tried.get(row) ?? 0) + 1);
    const models = new Set(here.map((r) => r.column)).size;
    const rows = new Set([...tried].filter(([, count]) => 2 * count >= models).map(([row]) => row));
    return data.columns.map((column, number) => {
      const results = here.filter((r) => r.column === number && rows.has(r.row));
      const scaled = results.filter((r) => r.scaled !== null).map((r) => Math.min(Math.max(r.scaled, 0), 1));
      const costs = Object.keys(data.costs).map((name) => {
        const known = results.map((r) => r.costs[name]).filter((v) => v !== undefined);
        return [name, known.length ? median(known) : null];
      });
      return { column, number, results, count: scaled.length, of: rows.size, costs: Object.fromEntries(costs),
        mean: rows.size && scaled.length === rows.size ? mean(scaled) : null };
    });
  };

  const points = {
    curve: (figure) => rowsOf(figure).flatMap((row) => data.results.filter((r) => r.row === row && shown.has(r.id)).flatMap((r) =>
      r.mean_curve.map(([x, score]) => point(r, data.columns[r.column].label, x, score)))),
    run: (figure) => ofRuns(figure, 1),
    loss: (figure) => ofRuns(figure, 2).filter((p) => p.value > 0),
    length: (figure) => rowsOf(figure).flatMap((row) => data.results.filter((r) => r.row === row && shown.has(r.id))
      .map((r) => ({ ...point(r, data.columns[r.column].label, data.rows[row].length, r.score), line: r.variant }))),
    further: (figure) => rowsOf(figure).flatMap((row) => data.results.filter((r) => r.row === row && shown.has(r.id)).flatMap((r) =>
      r.tests.map(([x, score]) => point(r, data.columns[r.column].label, x, score)))),
    efficiency: () => {
      const name = document.getElementById("cost").value;
      const row = document.getElementById("row").value;
      const all = summary(row === "" ? undefined : Number(row)).filter((m) => m.results.length);
      const without = all.filter((m) => m.mean === null).map((m) => m.column.label);
      document.getElementById("without").textContent = without.length ? `No point, because a scaled score on one of these tasks is missing: ${without.join(", ")}.` : "";
      const { size } = axes[data.costs[name]];
      return all.filter((m) => m.mean !== null && m.costs[name] > 0).map((m) => ({ name: m.column.label, column: m.number,
        result: row === "" ? m.column.id : m.results[0].id, x: m.costs[name] / size, cost: cost(name, m.costs[name]), y: m.mean, value: m.mean }));
    },
  };
  const rowsOf = (figure) => figure.dataset.rows.split(" ").map(Number);
  const point = (r, name, x, value, column = r.column) => ({ name, column, result: r.id, line: r.id, x, value, y: value === null ? null : Math.max(value, data.lowest) });
  const ofRuns = (figure, place) => {
    const result = byId.get(figure.dataset.of);
    return result.curves.flatMap(([seed, curve], number) => curve.map((entry) => {
      const made = point(result, `seed ${seed}`, entry[0], entry[place], number);
      return place === 2 ? { ...made, y: made.value } : made;
    }));
  };
  // The floor of a chart: a level, or a line through the floor of each length, which is named at its end.
  const floorOf = (figure, values) => {
    const kind = figure.dataset.chart;
    if (["loss", "efficiency"].includes(kind)) return [];
    const rows = (figure.dataset.rows ? rowsOf(figure) : [byId.get(figure.dataset.of).row]).map((row) => data.rows[row]);
    if (["curve", "run"].includes(kind)) return rows[0].floor ? [rows[0].floor] : [];
    const places = new Set(values.map((p) => p.x));
    const floors = rows.flatMap((row) => row.floors.filter((f) => places.has(f.x) && (kind === "further" || f.x === row.length)))
      .sort((a, b) => a.x - b.x);
    const name = floors.every((f) => f.name === floors[0].name) ? floors[0]?.name : "floor";
    const last = floors.length - 1;
    return last < 1 ? [] : floors.map((f, at) => ({ x: f.x, y: Math.max(f.y, data.lowest), name: at === last ? name : "" }));
  };

  const theme = () => {
    const style = getComputedStyle(document.documentElement);
    const probe = document.createElement("i");
    document.body.append(probe);
    const colour = (name) => {
      probe.style.color = style.getPropertyValue(name);
      return getComputedStyle(probe).color;
    };
    const [text, soft, line] = ["--text", "--soft", "--line"].map(colour);
    probe.remove();
    const font = getComputedStyle(document.body).fontFamily;
    return { background: "transparent", font, view: { stroke: line }, text: { fill: text },
      axis: { labelColor: soft, titleColor: text, gridColor: line, domainColor: line, tickColor: line, titleFontWeight: "normal" },
      legend: { labelColor: text, titleColor: text } };
  };
  const hint = (_, event, __, value) => {
    document.querySelector(".tip")?.remove();
    if (!value) return;
    const tip = document.createElement("p");
    tip.className = "tip";
    tip.textContent = Object.entries(value).map(([name, v]) => (name.trim() ? `${name} ${v}` : v)).join("\n");
    (event.target.closest?.("dialog") ?? document.body).append(tip);
    tip.popover = "manual";
    tip.showPopover();
    tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 8)}px`;
  };

  const draw = async (figure) => {
    const kind = figure.dataset.chart;
    const values = points[kind](figure).filter((p) => p.y !== null && p.y !== undefined);
    figure.hidden = !values.length && kind !== "efficiency";
    const plot = figure.querySelector(".plot");
    fill(figure, values);
    if (!values.length) {
      drawn.get(figure)?.finalize();
      plot.replaceChildren();
      drawn.set(figure, null);
    }
    if (!values.length || !plot.clientWidth) return;
    const spec = structuredClone(data.specs[kind]);
    spec.datasets = { values, floor: floorOf(figure, values) };
    const names = [...new Map(values.map((p) => [p.name, p.column]))];
    const [first] = spec.layer;
    first.encoding.color.scale = { domain: names.map(([name]) => name), range: names.map(([, column]) => palette[column % palette.length]) };
    if (first.encoding.color.legend) {
      const widest = Math.max(...names.map(([name]) => name.length));
      first.encoding.color.legend.columns = Math.max(1, Math.floor(plot.clientWidth / Math.min(7 * widest + 36, 280)));
      if (names.length < 2) first.encoding.color.legend = null;
    }
    if (kind === "further" && rowsOf(figure).some((row) => data.rows[row].relative)) {
      for (const { encoding } of spec.layer) Object.assign(encoding.x, { title: "multiple of the trained length or size" });
      first.encoding.tooltip[1].title = "multiple";
    }
    if (kind === "efficiency") {
      const { text, value } = document.getElementById("cost").selectedOptions[0];
      const { unit, format } = axes[data.costs[value]];
      // Vega joins the titles of layers that differ
      for (const { encoding } of spec.layer) Object.assign(encoding.x, { title: text + unit, axis: { format } });
      // names stand beside the points if there is room, otherwise in a legend
      if (plot.clientWidth < 600) spec.layer.pop();
      else first.encoding.color.legend = null;
    } else if (!spec.datasets.floor.length) {
      spec.layer = [first];
    }
    const { view } = await vegaEmbed(plot, spec, { ast: true, actions: false, defaultStyle: false, renderer: "svg", config: theme(), tooltip: hint });
    view.addEventListener("click", (_, item) => {
      if (item?.datum?.result && !figure.dataset.of) location.hash = item.datum.result;
    });
    drawn.get(figure)?.finalize();
    drawn.set(figure, view);
  };
  // Make the table with the values of a chart when it is opened.
  const fill = (figure, values) => {
    const box = figure.querySelector(".values");
    box.querySelector(".scroll")?.remove();
    if (!box.open) return;
    const places = [...new Set(values.map((p) => p.x))].sort((a, b) => a - b);
    const table = document.createElement("table");
    const add = (row, tag, text) => {
      const cell = document.createElement(tag);
      if (tag === "th") cell.scope = row.parentElement.tagName === "THEAD" ? "col" : "row";
      cell.textContent = text;
      row.append(cell);
    };
    const wide = figure.dataset.chart === "efficiency";
    const head = table.createTHead().insertRow();
    for (const text of wide ? ["model", "cost", "scaled score"] : ["name", ...places.map((v) => v.toLocaleString("en"))]) add(head, "th", text);
    const body = table.createTBody();
    for (const name of new Set(values.map((p) => p.name))) {
      const own = values.filter((p) => p.name === name);
      const row = body.insertRow();
      add(row, "th", name);
      if (wide) for (const text of [own[0].cost, own[0].y.toFixed(2)]) add(row, "td", text);
      else for (const x of places) {
        const here = own.filter((p) => p.x === x).map((p) => p.value);
        add(row, "td", here.length ? Number(mean(here).toPrecision(4)) : "");
      }
    }
    const scroll = document.createElement("div");
    scroll.className = "scroll";
    scroll.tabIndex = 0;
    scroll.role = "region";
    scroll.ariaLabel = "Values";
    scroll.append(table);
    box.append(scroll);
  };

  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) if (isIntersecting && !drawn.has(target)) draw(target);
  }, { rootMargin: "200px" });
  const watch = (root) => {
    for (const figure of root.querySelectorAll("[data-chart]")) seen.observe(figure);
  };
  const redraw = () => {
    for (const figure of drawn.keys()) {
      if (figure.isConnected) draw(figure);
      else drawn.delete(figure);
    }
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-save]");
    const figure = button?.closest("[data-chart]");
    if (!figure || !drawn.get(figure)) return;
    const link = document.createElement("a");
    link.href = await drawn.get(figure).toImageURL(button.dataset.save, 2);
    link.download = `lrtasks-${figure.dataset.chart}.${button.dataset.save}`;
    link.click();
  });
  document.addEventListener("toggle", (event) => {
    const figure = event.target.matches?.(".values") && event.target.closest("[data-chart]");
    if (figure) fill(figure, points[figure.dataset.chart](figure).filter((p) => p.y !== null));
  }, true);
  for (const id of ["cost", "row"]) document.getElementById(id).addEventListener("change", redraw);
  document.addEventListener("themed", redraw);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    redraw();
  });

  // Means, solved tasks and costs in the tables, over the results shown.
  const fillTables = () => {
    const models = summary();
    const of = models[0]?.of;
    document.getElementById("mean-of").textContent = `of ${of} ${of === 1 ? "task" : "tasks"}`;
    for (const model of models) {
      for (const cell of document.querySelectorAll(`[data-mean="${model.number}"]`)) {
        const own = model.mean !== null;
        cell.textContent = own ? model.mean.toFixed(2) : model.count ? `${model.count} of ${model.of}` : "";
        cell.classList.toggle("partial", !own);
        cell.dataset.value = own ? model.mean : "";
      }
      const solved = document.querySelector(`[data-solved="${model.number}"]`);
      const scaled = model.results.filter((r) => r.scaled !== null);
      solved.textContent = `${scaled.filter((r) => r.scaled >= data.solved).length} of ${scaled.length}`;
      for (const cell of solved.parentElement.querySelectorAll("[data-cost]")) {
        const value = model.costs[cell.dataset.cost];
        cell.textContent = value === null ? "" : cost(cell.dataset.cost, value);
        cell.dataset.value = value ?? "";
      }
    }
  };
  document.addEventListener("filtered", (event) => {
    shown = event.detail;
    fillTables();
    redraw();
  });
  fillTables();
  watch(document);
  return { data, watch };
})();
