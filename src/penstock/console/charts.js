// Charts of the last fifteen minutes. A new one is one more call of `chart` in a view.

import { h, timeOfDay } from "./kit.js";
import { follow, seconds } from "./server_link.js";
import uPlot from "./vendor/uPlot.js";

const MOST = 15 * 60;
const LEAST = 2 * 60;
const DASHES = [[], [8, 4], [2, 3], [12, 3, 2, 3], [5, 5], [1, 2]];
const cursor = uPlot.sync("seconds");

/** A colour of the stylesheet, as it is now. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * What charts have in common: a figure with a legend, and a plot from zero on, in the colours of the page. *line* is
 * how series are drawn, *x* how the axis of times is, and *tell* hears that the pointer has moved.
 */
export function plotted({ title, about, height, sync, padding, series, line, format, x, scales, tell, signal }) {
  const place = h("div", { class: "plot", "aria-hidden": "true" });
  const values = series.map(() => h("span", { class: "value" }, "–"));
  const [when, noted] = [h("span", { class: "quiet" }), h("span", { class: "quiet noted" })];
  const legend = series.map((one, at) => h("span", { class: `key s${at}` }, one.label, values[at]));
  const element = h("figure", { class: "card chart" },
    h("figcaption", {}, h("h2", { title: about }, title), when, h("p", { class: "keys" }, legend, noted)), place);
  let [plot, data] = [null, null];
  const axis = () => ({
    stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false },
    font: "11px system-ui",
  });
  const make = () => new uPlot({
    width: place.clientWidth, height, padding, legend: { show: false },
    cursor: { sync: { key: sync.key }, drag: { x: false, y: false }, points: { size: 6 } },
    scales: { ...scales, y: { range: (self, low, high) => [0, Math.max(high ?? 0, 1) * 1.1] } },
    axes: [{ ...axis(), size: 24, ...x },
      { ...axis(), size: 64, space: 36, values: (self, splits) => splits.map((at) => format(at)) }],
    series: [{}, ...series.map((one, at) =>
      ({ label: one.label, stroke: colour(`--s${at}`), width: 1.5, dash: DASHES[at], ...line }))],
    hooks: { setCursor: [tell] },
  }, data, place);
  const draw = (newer = data) => {
    data = newer;
    if (!data || !place.clientWidth) return;
    if (plot) plot.setData(data);
    else plot = make();
  };
  const size = new ResizeObserver(() => {
    if (!plot) draw();
    else if (plot.width !== place.clientWidth) plot.setSize({ width: place.clientWidth, height });
  });
  size.observe(place);
  const again = () => { plot?.destroy(); plot = null; draw(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again, { signal });
  signal.addEventListener("abort", () => { size.disconnect(); plot?.destroy(); });
  return { element, when, values, noted, draw, pointed: () => plot?.cursor.idx ?? null };
}

/** Where a series has a value and none beside it: no line would show it. */
function alone(plot, line) {
  const values = plot.data[line];
  const isNone = (at) => (values[at] ?? null) === null;
  return values.flatMap((value, at) => (!isNone(at) && isNone(at - 1) && isNone(at + 1) ? [at] : []));
}

/**
 * A chart that follows the seconds until *signal* says stop.
 * Series: {label, value(second) → number or null}. *format* makes a value readable, with its unit; *note(second)* may
 * add a word of what stands behind it.
 */
export function chart({ title, about, series, format, note, signal }) {
  let data = [[]];
  const tell = () => {
    const at = drawn.pointed() ?? data[0].length - 1;
    drawn.noted.textContent = (at >= 0 && note?.(seconds[at])) || "";
    drawn.when.textContent = at >= 0 ? timeOfDay(data[0][at] * 1000) : "";
    drawn.values.forEach((node, line) => { node.textContent = format(data[line + 1]?.[at] ?? null); });
  };
  const end = () => data[0].at(-1) ?? Date.now() / 1000;
  const span = () => Math.min(MOST, Math.max(LEAST, end() - (data[0][0] ?? 0)));
  const timeShown = (at) => timeOfDay(at * 1000).slice(0, span() < 600 ? 8 : 5);
  const drawn = plotted({
    title, about, height: 144, sync: cursor, padding: [8, 24, 0, 0], series, format, tell, signal,
    line: { points: { show: false, size: 4, filter: alone } },
    x: { values: (self, splits) => splits.map(timeShown), space: 72 },
    scales: { x: { range: () => [end() - span(), end()] } },
  });
  const update = () => {
    data = [seconds.map((one) => one.ms / 1000), ...series.map((one) => seconds.map((second) => one.value(second)))];
    if (!document.hidden) drawn.draw(data);
    tell();
  };
  follow(update, signal);
  return drawn.element;
}
