// Score above floor against a cost that the reader chooses, for one task or for the mean over the tasks shown.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const place = document.getElementById("scatter");
  const cost = document.getElementById("scatter-cost");
  const row = document.getElementById("scatter-row");
  const note = document.getElementById("scatter-note");
  const units = {
    seconds_per_step: (v) => (v < 1 ? `${short(v * 1000)} ms` : `${short(v)} s`),
    count: (v) => (v < 1e3 ? short(v) : v < 1e6 ? `${short(v / 1e3)} k` : `${short(v / 1e6)} M`),
    state_bytes: bytes,
    peak_memory_bytes: bytes,
  };
  let shown = new Set(data.results.map((result) => result.id));

  function short(v) {
    return String(Number(v.toPrecision(3)));
  }
  function bytes(v) {
    const power = v < 1 ? 0 : Math.min(Math.floor(Math.log2(v) / 10), 4);
    return `${short(v / 1024 ** power)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
  }
  function mean(values) {
    return values.reduce((sum, v) => sum + v, 0) / values.length;
  }
  function median(values) {
    const sorted = values.toSorted((a, b) => a - b);
    return mean([sorted[(sorted.length - 1) >> 1], sorted[sorted.length >> 1]]);
  }
  function limited(v) {
    return Math.min(Math.max(v, 0), 1);
  }
  function element(tag, attributes, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, v] of Object.entries(attributes)) made.setAttribute(name, v);
    made.append(...children);
    return made;
  }

  // One point per model: where it lies and where it leads.
  function points() {
    const found = [];
    const without = [];
    data.columns.forEach((column, number) => {
      const results = data.results.filter(
        (r) => r.column === number && shown.has(r.id) && r.above !== null && (row.value === "" || r.row === Number(row.value)),
      );
      if (!results.length) return;
      const known = results.filter((r) => r.costs[cost.value] > 0);
      if (!known.length) {
        without.push(column.label);
        return;
      }
      found.push({
        label: column.label,
        number,
        href: row.value === "" ? column.id : results[0].id,
        count: results.length,
        x: median(known.map((r) => r.costs[cost.value])),
        y: mean(results.map((r) => limited(r.above))),
      });
    });
    return { found, without };
  }
  function ticks(low, high) {
    const all = [];
    if (units[cost.value] === bytes) {
      for (let e = Math.ceil(Math.log2(low)); e <= Math.log2(high); e++) all.push(2 ** e);
      const every = Math.ceil(all.length / 6);
      return all.filter((_, number) => number % every === 0);
    }
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
      for (const factor of [1, 2, 5]) all.push(factor * 10 ** e);
    }
    const inside = all.filter((v) => v >= low && v <= high);
    const powers = inside.filter((v) => Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9);
    return powers.length > 2 ? powers : inside;
  }
  const pen = document.createElement("canvas").getContext("2d");
  function textWidth(text) {
    pen.font = `12px ${getComputedStyle(place).fontFamily}`;
    return pen.measureText(text).width;
  }
  // The side of a point where its label meets no other; none where all are taken.
  function labelPlace(x, y, width, taken, frame) {
    const sides = [[x + 9, y + 4], [x - 9 - width, y + 4], [x - width / 2, y - 9], [x - width / 2, y + 18], [x + 7, y - 7], [x + 7, y + 15], [x - 7 - width, y - 7], [x - 7 - width, y + 15]];
    for (const [left, base] of sides) {
      const box = [left, base - 11, left + width, base + 3];
      const free = taken.every((other) => box[2] < other[0] || box[0] > other[2] || box[3] < other[1] || box[1] > other[3]);
      if (free && left > frame.left && box[2] < frame.right && base > frame.top && base < frame.bottom - 2) {
        taken.push(box);
        return [left, base];
      }
    }
    return null;
  }

  function draw() {
    const width = Math.max(place.clientWidth, 280);
    const height = width < 600 ? 300 : 360;
    const frame = { left: 46, right: width - 14, top: 14, bottom: height - 46 };
    const { found, without } = points();
    const costName = cost.selectedOptions[0].text;
    const svg = element("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "group" });
    svg.setAttribute("aria-label", `Score above floor against ${costName}, ${found.length} models. The table below holds the values.`);
    const highest = Math.max(0.2, ...found.map((p) => Math.ceil(p.y * 5 - 1e-9) / 5));
    // a little room below 0, where the points of those at the floor lie
    const y = (v) => frame.bottom - 8 - (v / highest) * (frame.bottom - 8 - frame.top);
    svg.append(element("line", { class: "grid", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom }));
    for (const v of [0, 0.2, 0.4, 0.6, 0.8, 1].filter((v) => v <= highest + 1e-9)) {
      svg.append(element("line", { class: "grid", x1: frame.left, x2: frame.right, y1: y(v), y2: y(v) }));
      svg.append(element("text", { x: frame.left - 8, y: y(v) + 4, "text-anchor": "end" }, String(v)));
    }
    if (found.length) {
      const xs = found.map((p) => p.x);
      const low = Math.min(...xs) / 1.4;
      const high = Math.max(...xs) * 1.4;
      const x = (v) => frame.left + ((Math.log(v) - Math.log(low)) / (Math.log(high) - Math.log(low))) * (frame.right - frame.left);
      for (const v of ticks(low, high)) {
        svg.append(element("line", { class: "grid", x1: x(v), x2: x(v), y1: frame.bottom, y2: frame.bottom + 4 }));
        svg.append(element("text", { x: x(v), y: frame.bottom + 18, "text-anchor": "middle" }, units[cost.value](v)));
      }
      const taken = found.map((p) => [x(p.x) - 6, y(p.y) - 6, x(p.x) + 6, y(p.y) + 6]);
      for (const point of found) {
        const words = `${point.label}: ${point.y.toFixed(2)} above floor, ${units[cost.value](point.x)}`;
        const link = element("a", { href: `#${point.href}`, "aria-label": words, class: `m${point.number % 7}` });
        link.append(element("title", {}, words), element("circle", { class: "dot", cx: x(point.x), cy: y(point.y), r: 6 }));
        const at = labelPlace(x(point.x), y(point.y), textWidth(point.label), taken, frame);
        if (at) link.append(element("text", { class: "label", x: at[0], y: at[1] }, point.label));
        svg.append(link);
      }
    }
    svg.append(element("text", { class: "axis", x: (frame.left + frame.right) / 2, y: height - 8, "text-anchor": "middle" }, costName));
    svg.append(element("text", { class: "axis", transform: `translate(12 ${(frame.top + frame.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, "score above floor"));
    place.replaceChildren(svg);
    const counts = found.map((p) => p.count);
    const [fewest, most] = [Math.min(...counts), Math.max(...counts)];
    const remarks = [];
    if (fewest < most) remarks.push(`These models were run on ${fewest} to ${most} tasks; means over different tasks do not compare.`);
    if (without.length) remarks.push(`Without ${costName}: ${without.join(", ")}.`);
    note.textContent = remarks.join(" ");
  }

  cost.addEventListener("change", draw);
  row.addEventListener("change", draw);
  document.addEventListener("filtered", (event) => {
    shown = event.detail;
    draw();
  });
  new ResizeObserver(draw).observe(place);
  draw();
})();
