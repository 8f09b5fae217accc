"use strict";
// Draws the page's charts from the JSON in it. Nothing is fetched; text is set as text, never as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const COLOURS = Array.from({ length: 12 }, (_, i) => `var(--c${i})`);  // of report.css
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 4", "4 2", "1 2", "8 2 2 2 2 2"];
const WIDTH = 960, HEIGHT = 400, LEFT = 64, RIGHT = 24, TOP = 16, BOTTOM = 44;

function node(name, attributes = {}, parent = null, text = null) {
  const svg = ["svg", "g", "path", "line", "text", "circle", "rect", "title"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function spell(value) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e9 || size < 1e-3) return value.toExponential(2);
  if (size >= 1e6) return (value / 1e6).toFixed(1) + " M";
  if (size >= 1e4) return (value / 1e3).toFixed(0) + " k";
  return String(+value.toPrecision(4));
}

// Round numbers between two bounds; powers of ten and what lies between them on a log axis.
function ticks(low, high, log) {
  const found = [];
  if (!(high > low)) return Number.isFinite(low) ? [low] : []; // one place: no steps lead on from it
  if (log) {
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      for (const lead of [1, 2, 5]) {
        const tick = lead * 10 ** power;
        if (tick >= low * 0.999 && tick <= high * 1.001) found.push(tick);
      }
    if (found.length >= 3) return found.length > 9 ? found.filter((t) => /^1/.test(t.toExponential())) : found;
    found.length = 0;
  }
  const rough = (high - low) / 6 || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((lead) => lead * power >= rough) * power;
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-6; tick += step)
    found.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
  return found;
}

function scale(low, high, log, from, to) {
  const f = log ? Math.log : (value) => value;
  const a = f(low), b = f(high) === f(low) ? f(low) + 1 : f(high);
  return (value) => from + ((f(value) - a) / (b - a)) * (to - from);
}

function style(index) {
  return { stroke: COLOURS[index % COLOURS.length], "stroke-dasharray": DASHES[index % DASHES.length],
    "stroke-width": 2, fill: "none" };
}

// ---- lines with bands: series are {name, index, x, mean, low, high}
function drawLines(svg, series, options, readout) {
  svg.replaceChildren();
  node("title", {}, svg, options.title);
  const positive = (log) => (value) => value !== null && isFinite(value) && (!log || value > 0);
  const xs = series.flatMap((s) => s.x).filter(positive(options.logX));
  const ys = series.flatMap((s) => [...s.low, ...s.high, ...s.mean]).filter(positive(options.logY));
  if (!xs.length || !ys.length) {
    node("text", { x: LEFT, y: HEIGHT / 2 }, svg, "nothing to draw");
    return;
  }
  const floor = options.floor;  // the best that is possible, if that is known
  if (positive(options.logY)(floor ?? null)) ys.push(floor);
  let low = Math.min(...ys), high = Math.max(...ys);
  if (!options.logY) { const pad = (high - low) * 0.05 || 0.1; low -= pad; high += pad; }
  const x = scale(Math.min(...xs), Math.max(...xs), options.logX, LEFT, WIDTH - RIGHT);
  const y = scale(low, high, options.logY, HEIGHT - BOTTOM, TOP);
  axes(svg, x, y, [Math.min(...xs), Math.max(...xs)], [low, high], options);
  if (ys.includes(floor)) {
    node("line", { class: "floor", x1: LEFT, x2: WIDTH - RIGHT, y1: y(floor), y2: y(floor) }, svg);
    node("text", { x: WIDTH - RIGHT, y: y(floor) - 5, "text-anchor": "end" }, svg, `best possible ${spell(floor)}`);
  }
  for (const s of series) {
    const kept = s.x.map((value, i) => i)
      .filter((i) => positive(options.logX)(s.x[i]) && positive(options.logY)(s.mean[i]));
    const point = (values) => (i) => `${x(s.x[i]).toFixed(1)},${y(values[i]).toFixed(1)}`;
    const bounded = kept.filter((i) => positive(options.logY)(s.low[i]) && positive(options.logY)(s.high[i]));
    if (bounded.length > 1)
      node("path", { class: "band", fill: COLOURS[s.index % COLOURS.length],
        d: "M" + bounded.map(point(s.high)).join("L") + "L" + bounded.reverse().map(point(s.low)).join("L") + "Z" }, svg);
    if (kept.length) node("path", { ...style(s.index), d: "M" + kept.map(point(s.mean)).join("L") }, svg);
    if (options.points) for (const i of kept)
      node("circle", { cx: x(s.x[i]), cy: y(s.mean[i]), r: 3.5, fill: COLOURS[s.index % COLOURS.length] }, svg);
  }
  const cursor = node("line", { class: "cursor hidden", y1: TOP, y2: HEIGHT - BOTTOM }, svg);
  const stops = [...new Set(series.flatMap((s) => s.x))].filter(positive(options.logX)).sort((a, b) => a - b);
  let at = stops.length - 1;
  function show(place) {
    at = Math.max(0, Math.min(stops.length - 1, place));
    const value = stops[at];
    cursor.classList.remove("hidden");
    cursor.setAttribute("x1", x(value));
    cursor.setAttribute("x2", x(value));
    const told = series.map((s) => {
      let near = 0;
      s.x.forEach((other, i) => { if (Math.abs(other - value) < Math.abs(s.x[near] - value)) near = i; });
      return `${s.name} ${spell(s.mean[near])}`;
    });
    readout.textContent = `${options.xLabel} ${spell(value)}:  ${told.join("   ")}`;
  }
  svg.onpointermove = (event) => {
    const box = svg.getBoundingClientRect();
    const wanted = ((event.clientX - box.left) / box.width) * WIDTH;
    let near = 0;
    stops.forEach((stop, i) => { if (Math.abs(x(stop) - wanted) < Math.abs(x(stops[near]) - wanted)) near = i; });
    show(near);
  };
  svg.onkeydown = (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (move) { event.preventDefault(); show(at + move); }
  };
}

function axes(svg, x, y, [x0, x1], [y0, y1], options) {
  for (const tick of ticks(y0, y1, options.logY)) {
    node("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(tick), y2: y(tick) }, svg);
    node("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, svg, spell(tick));
  }
  for (const tick of ticks(x0, x1, options.logX)) {
    node("line", { class: "axis", x1: x(tick), x2: x(tick), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 }, svg);
    node("text", { x: x(tick), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, svg, spell(tick));
  }
  node("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }, svg);
  node("text", { x: WIDTH - RIGHT, y: HEIGHT - 8, "text-anchor": "end", class: "soft-text" }, svg, options.xLabel);
  node("text", { x: LEFT + 6, y: TOP + 10, class: "soft-text" }, svg, options.yLabel);
}

function chart(parent, title) {
  const figure = node("figure", {}, parent);
  const controls = node("div", { class: "controls" }, figure);
  const svg = node("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0", "aria-label": title }, figure);
  const readout = node("div", { class: "readout", role: "status", "aria-live": "polite" }, figure);
  return { figure, controls, svg, readout };
}

function choice(controls, label, options, changed) {
  const wrap = node("label", {}, controls, label + " ");
  const select = node("select", {}, wrap);
  for (const option of options) node("option", { value: option }, select, option);
  return kept(select, label, "value", changed);
}

// What a reader chose is still chosen when the page is loaded again.
const memory = {
  key: (name) => `${location.pathname} ${name}`,
  get(name) {
    try { return JSON.parse(sessionStorage.getItem(this.key(name))); } catch { return null; }
  },
  set(name, value) {
    try { sessionStorage.setItem(this.key(name), JSON.stringify(value)); } catch { /* may not store */ }
  },
};

function kept(control, label, property, changed) {
  const before = memory.get(label);
  if (before !== null) control[property] = before;
  if (control.selectedIndex === -1) control.selectedIndex = 0;  // a choice that is no more
  control.onchange = () => {
    memory.set(label, control[property]);
    changed();
  };
  return control;
}

function tick(controls, label, changed) {
  const wrap = node("label", {}, controls);
  const box = node("input", { type: "checkbox" }, wrap);
  wrap.append(" " + label);
  return kept(box, label, "checked", changed);
}

function legend(controls, names, changed) {
  const hidden = new Set(memory.get("hidden") || []);
  const shown = new Set(names.filter((name) => !hidden.has(name)));
  names.forEach((name, index) => {
    const button = node("button", { type: "button", "aria-pressed": String(shown.has(name)) }, controls);
    const sample = node("svg", { viewBox: "0 0 32 12", "aria-hidden": "true" }, button);
    node("path", { ...style(index), d: "M0 6H32" }, sample);
    button.append(" " + name);
    button.onclick = () => {
      if (shown.has(name)) shown.delete(name); else shown.add(name);
      button.setAttribute("aria-pressed", String(shown.has(name)));
      memory.set("hidden", names.filter((other) => !shown.has(other)));
      changed();
    };
  });
  return shown;
}

// ---- learning curves: mean over seeds, band from the least to the largest
function curves(parent) {
  if (!Object.keys(data.curves.metrics).length) return;  // no run got as far as a row
  const { controls, svg, readout } = chart(parent, "learning curves with bands over seeds");
  const draw = () => {
    const arms = data.curves.metrics[metric.value];
    const series = data.arms.map((name, index) => ({ name, index }))
      .filter((s) => shown.has(s.name) && arms[s.name])
      .map((s) => {
        const own = arms[s.name], factor = data.curves.axes[axis.value][s.name];
        return { ...s, x: own.step.map((v) => v * factor), mean: own.mean, low: own.low, high: own.high };
      });
    drawLines(svg, series, { title: metric.value, xLabel: axis.value, yLabel: metric.value,
      logX: logX.checked, logY: logY.checked,
      floor: metric.value.endsWith("/loss") ? data.curves.floor : null }, readout);
  };
  const metric = choice(controls, "metric", Object.keys(data.curves.metrics), draw);
  const axis = choice(controls, "over", Object.keys(data.curves.axes), draw);
  const logX = tick(controls, "log x", draw), logY = tick(controls, "log y", draw);
  const shown = legend(controls, data.arms, draw);
  draw();
}

// ---- a chart of given lines
function lines(parent, given) {
  const { controls, svg, readout } = chart(parent, given.title);
  const draw = () => drawLines(svg, given.series.filter((s) => shown.has(s.name)), { ...given,
    logX: given.logX || false, logY: false }, readout);
  const areArms = given.series.every((s) => data.arms.includes(s.name));
  const names = areArms ? data.arms : given.series.map((s) => s.name);
  const shown = legend(controls, names, draw);
  draw();
}

// ---- forest plot: every seed's difference, the mean, its interval and the margin
function forest(parent) {
  const rows = data.forest.rows, height = 70 + 46 * rows.length;
  const figure = node("figure", {}, parent);
  const svg = node("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", tabindex: "0",
    "aria-label": "paired differences from the base: " + rows.map((r) => `${r.name} ${spell(r.mean)}`).join(", ") }, figure);
  node("title", {}, svg, "paired differences from the base");
  const finite = (value) => value !== null && isFinite(value);
  const seen = rows.flatMap((r) => [...r.differences, r.mean]).filter(finite);
  const reach = Math.max(...seen.map(Math.abs), data.forest.margin || 0) * 1.6 || 1;
  const bounds = rows.flatMap((r) => [...r.interval]).filter(finite).map((v) => Math.max(-reach, Math.min(reach, v)));
  const low = Math.min(0, ...seen, ...bounds), high = Math.max(0, ...seen, ...bounds);
  const pad = (high - low) * 0.04, left = 250;
  const x = scale(low - pad, high + pad, false, left, WIDTH - RIGHT);
  const clip = (value) => Math.max(left, Math.min(WIDTH - RIGHT, x(value)));
  const bottom = height - 40;
  if (data.forest.margin)
    node("rect", { class: "margin", x: clip(-data.forest.margin), width: clip(data.forest.margin) - clip(-data.forest.margin), y: 10, height: bottom - 10 }, svg);
  node("line", { class: "zero", x1: x(0), x2: x(0), y1: 10, y2: bottom }, svg);
  for (const tick of ticks(low - pad, high + pad, false)) {
    node("line", { class: "axis", x1: x(tick), x2: x(tick), y1: bottom, y2: bottom + 4 }, svg);
    node("text", { x: x(tick), y: bottom + 17, "text-anchor": "middle" }, svg, spell(tick));
  }
  node("text", { x: WIDTH - RIGHT, y: height - 6, "text-anchor": "end", class: "soft-text" }, svg, data.forest.label);
  rows.forEach((row, i) => {
    const y = 34 + 46 * i, colour = COLOURS[row.index % COLOURS.length];
    const name = node("text", { x: left - 12, y: y + 4, "text-anchor": "end" }, svg, row.name.length > 34 ? row.name.slice(0, 33) + "…" : row.name);
    node("title", {}, name, row.name);
    if (finite(row.mean)) {
      const [a, b] = row.interval;
      if (finite(a)) node("line", { stroke: colour, "stroke-width": 3, x1: clip(a), x2: clip(b), y1: y, y2: y }, svg);
      const mark = node("circle", { cx: x(row.mean), cy: y, r: 6, fill: colour, stroke: "#fff" }, svg);
      node("title", {}, mark, `${row.name}: mean ${spell(row.mean)}`);
    } else node("text", { x: left + 8, y: y + 4, class: "soft-text" }, svg, row.words);
    row.differences.forEach((value, s) => {
      const dot = node("circle", { cx: x(value), cy: y + 14, r: 3, fill: "none", stroke: colour }, svg);
      node("title", {}, dot, `seed ${row.seeds[s]}: ${spell(value)}`);
    });
  });
}

const DRAW = { curves, forest };
for (const place of document.querySelectorAll("[data-chart]")) {
  const name = place.dataset.chart;
  if (DRAW[name]) DRAW[name](place); else lines(place, data.charts[name]);
}
