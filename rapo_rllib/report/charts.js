// Plots: one per panel for one trial, or one per series with all trials laid over each other. Hover, touch or arrow keys tell values.
"use strict";

const BOX = { width: 480, height: 240, left: 56, right: 14, top: 12, bottom: 30 };
const ALL = "all";

(function charts() {
  const trials = byId("curve-trial");
  const axis = byId("curve-axis");
  const names = DATA.trials.map((trial, index) => [index, trial.label]);
  offer(trials, names.length > 1 ? [[ALL, "all, compared"], ...names] : names);
  trials.parentElement.hidden = names.length < 2;
  offer(axis, Object.keys(DATA.trials[0].curves.x).map((name) => [name, name]));
  const draw = () => {
    const figures = trials.value === ALL ? comparedFigures(axis.value) : trialFigures(Number(trials.value), axis.value);
    byId("charts").replaceChildren(...(figures.length ? figures : [element("p", { class: "soft" }, "No results yet.")]));
  };
  trials.addEventListener("change", draw);
  axis.addEventListener("change", draw);
  draw();
})();

function trialFigures(index, axis) {
  const { x, series } = DATA.trials[index].curves;
  return DATA.panels
    .map((panel) => {
      const lines = Object.entries(panel.series).map(([label, key], tone) => ({ label, tone, x: x[axis], y: series[key] }));
      return { ...panel, lines: lines.filter(hasValues) };
    })
    .filter((panel) => panel.lines.length)
    .map((panel) => figure(panel, axis));
}

function comparedFigures(axis) {
  return DATA.panels.filter((panel) => !panel.stacked).flatMap((panel) => seriesFigures(panel, axis));
}

function seriesFigures(panel, axis) {
  const several = Object.keys(panel.series).length > 1;
  return Object.entries(panel.series).map(([label, key], place) => {
    const lines = DATA.trials.map(({ label, curves }, tone) => ({ label, tone, x: curves.x[axis], y: curves.series[key] }));
    const title = several ? `${panel.title}: ${label}` : panel.title;
    return figure({ title, note: place ? "" : panel.note, stacked: false, lines: lines.filter(hasValues) }, axis);
  });
}

function hasValues(line) {
  return line.y.some((value) => value !== null);
}

function figure(panel, axis) {
  const scales = scaled(panel);
  const svg = drawing("svg", {
    class: "chart", viewBox: `0 0 ${BOX.width} ${BOX.height}`, tabindex: 0, role: "img",
    "aria-label": `${panel.title}, over ${axis}. ${panel.lines.map(lastValue).join(", ")}`,
  }, ...frame(scales, panel), ...(panel.stacked ? bars(panel, scales) : panel.lines.flatMap((line) => curve(line, scales))));
  const key = element("ul", { class: "key" }, ...(panel.lines.length > 1 || !panel.stacked ? panel.lines.map(keyEntry) : []));
  const shown = element("figure", { "data-title": panel.title },
    element("h3", {}, panel.title), svg, key, panel.note ? element("figcaption", {}, panel.note) : null);
  tellValues(shown, svg, panel, scales, axis);
  return shown;
}

function lastValue(line) {
  return `${line.label} last ${shownNumber(line.y.filter((value) => value !== null).at(-1))}`;
}

function keyEntry(line) {
  return element("li", {}, element("span", { class: `dot c${line.tone % 8}` }), line.label);
}

function scaled(panel) {
  const known = (line) => line.x.filter((x, index) => x !== null && line.y[index] !== null);
  const xs = [...new Set(panel.lines.flatMap(known))].sort((a, b) => a - b);
  const sums = panel.stacked ? xs.map((x) => panel.lines.reduce((sum, line) => sum + (at(line, x) || 0), 0)) : [];
  const ys = panel.stacked ? [0, ...sums] : panel.lines.flatMap((line) => line.y.filter((value) => value !== null));
  let [low, high] = [Math.min(...ys), Math.max(...ys)];
  if (low >= 0 && low < high * 0.5) low = 0;
  if (low === high) [low, high] = low === 0 ? [0, 1] : [Math.min(low, 0), Math.max(high, 0)];
  const ticks = niceTicks(low, high);
  [low, high] = [Math.min(low, ticks[0]), Math.max(high, ticks.at(-1))];
  const [inner, tall] = [BOX.width - BOX.left - BOX.right, BOX.height - BOX.top - BOX.bottom];
  const slot = inner / Math.max(xs.length, 1);
  const span = xs.at(-1) - xs[0];
  const place = (x) => (span ? ((x - xs[0]) / span) * inner : inner / 2);
  return {
    xs, ticks, slot,
    x: (x) => BOX.left + (panel.stacked ? (xs.indexOf(x) + 0.5) * slot : place(x)),
    y: (y) => BOX.top + tall - ((y - low) / (high - low)) * tall,
  };
}

function at(line, x) {
  const index = line.x.indexOf(x);
  return index < 0 ? null : line.y[index];
}

function niceTicks(low, high) {
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= rough);
  const first = Math.floor(low / step);
  const last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

function shortNumber(value) {
  return Math.abs(value) >= 1e4 ? new Intl.NumberFormat("en", { notation: "compact" }).format(value) : shownNumber(value);
}

function frame(scales, panel) {
  const right = BOX.width - BOX.right;
  const rows = scales.ticks.flatMap((tick) => [
    drawing("line", { class: "grid", x1: BOX.left, x2: right, y1: scales.y(tick), y2: scales.y(tick) }),
    drawing("text", { x: BOX.left - 7, y: scales.y(tick) + 4, "text-anchor": "end" }, shortNumber(tick)),
  ]);
  const every = Math.max(Math.ceil(scales.xs.length / 6), 1);
  const marks = panel.stacked
    ? scales.xs.filter((_, index) => index % every === 0)
    : [...new Set([scales.xs[0], scales.xs[Math.floor((scales.xs.length - 1) / 2)], scales.xs.at(-1)])];
  const label = (x) => drawing("text", { x: scales.x(x), y: BOX.height - 9, "text-anchor": anchor(x, scales, panel) }, shortNumber(x));
  return [...rows, ...marks.map(label)];
}

function anchor(x, scales, panel) {
  return !panel.stacked && scales.xs.length > 1 && x === scales.xs.at(-1) ? "end" : "middle";
}

function curve(line, scales) {
  const points = line.x
    .map((x, index) => [x, line.y[index]])
    .filter(([x, y]) => x !== null && y !== null)  // a line runs over gaps: held-out accuracy is measured seldom
    .map(([x, y]) => [scales.x(x), scales.y(y)]);
  const tone = `c${line.tone % 8}`;
  const dots = points.length <= 40 ? points.map(([cx, cy]) => drawing("circle", { class: `point ${tone}`, cx, cy, r: 3 })) : [];
  return [drawing("polyline", { class: `line ${tone}`, points: points.map((point) => point.map((v) => v.toFixed(1)).join()).join(" ") }), ...dots];
}

function bars(panel, scales) {
  const width = Math.max(Math.min(scales.slot * 0.8, 60), 1);
  return scales.xs.flatMap((x) => {
    let sum = 0;
    return panel.lines.map((line) => {
      const value = at(line, x) || 0;
      const [top, foot] = [scales.y(sum + value), scales.y(sum)];
      sum += value;
      return drawing("rect", { class: `bar c${line.tone % 8}`, x: scales.x(x) - width / 2, y: top, width, height: Math.max(foot - top, 0) });
    });
  });
}

// A cursor line and a box with the values at the nearest place.
function tellValues(shown, svg, panel, scales, axis) {
  const tip = element("div", { class: "tip", role: "status", hidden: "" });
  const cursor = drawing("line", { class: "cursor", y1: BOX.top, y2: BOX.height - BOX.bottom, visibility: "hidden" });
  shown.append(tip);
  svg.append(cursor);
  let place = scales.xs.length - 1;
  const tell = () => {
    const x = scales.xs[place];
    const values = panel.lines.filter((line) => at(line, x) !== null)
      .map((line) => element("p", {}, element("span", { class: `dot c${line.tone % 8}` }), `${line.label}: ${shownNumber(at(line, x))}`));
    tip.replaceChildren(element("p", { class: "soft" }, `${axis} ${shownNumber(x)}`), ...values);
    tip.hidden = false;
    tip.style.left = tip.style.right = "";
    tip.style[scales.x(x) > BOX.width / 2 ? "left" : "right"] = "12px";
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, scales.x(x));
    cursor.setAttribute("visibility", "visible");
  };
  const leave = () => {
    tip.hidden = true;
    cursor.setAttribute("visibility", "hidden");
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const wanted = ((event.clientX - box.left) / box.width) * BOX.width;
    const distance = (index) => Math.abs(scales.x(scales.xs[index]) - wanted);
    place = scales.xs.reduce((best, _, index) => (distance(index) < distance(best) ? index : best), 0);
    tell();
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    place = Math.min(Math.max(place + step, 0), scales.xs.length - 1);
    tell();
    event.preventDefault();
    event.stopPropagation();  // the reader's keys are the same
  });
}
