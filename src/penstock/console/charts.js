// Charts of the last fifteen minutes. A new one is one more call of `chart` in a view.

import { h, timeOfDay } from "./kit.js";
import { follow, seconds } from "./server_link.js";
import uPlot from "./vendor/uPlot.js";

const MOST = 15 * 60;
const LEAST = 2 * 60;
const HEIGHT = 144;
const DASHES = [[], [8, 4], [2, 3], [12, 3, 2, 3], [5, 5], [1, 2]];
const cursor = uPlot.sync("seconds");

/** A colour of the stylesheet, as it is now. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

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
  const place = h("div", { class: "plot", "aria-hidden": "true" });
  const values = series.map(() => h("span", { class: "value" }, "–"));
  const when = h("span", { class: "quiet" });
  const noted = h("span", { class: "quiet noted" });
  const legend = series.map((one, at) => h("span", { class: `key s${at}` }, one.label, values[at]));
  const figure = h("figure", { class: "card chart" },
    h("figcaption", {}, h("h2", { title: about }, title), when, h("p", { class: "keys" }, legend, noted)), place);
  let plot = null;
  let data = [[]];

  const tell = () => {
    const at = plot?.cursor.idx ?? data[0].length - 1;
    noted.textContent = (at >= 0 && note?.(seconds[at])) || "";
    when.textContent = at >= 0 ? timeOfDay(data[0][at] * 1000) : "";
    values.forEach((node, line) => { node.textContent = format(data[line + 1]?.[at] ?? null); });
  };
  const end = () => data[0].at(-1) ?? Date.now() / 1000;
  const span = () => Math.min(MOST, Math.max(LEAST, end() - (data[0][0] ?? 0)));
  const axis = {
    stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false },
    font: "11px system-ui",
  };
  const timeShown = (at) => timeOfDay(at * 1000).slice(0, span() < 600 ? 8 : 5);
  const line = (one, at) => ({
    label: one.label, stroke: colour(`--s${at}`), width: 1.5, dash: DASHES[at],
    points: { show: false, size: 4, filter: alone },
  });
  const make = () => new uPlot({
    width: place.clientWidth, height: HEIGHT, legend: { show: false }, padding: [8, 24, 0, 0],
    cursor: { sync: { key: cursor.key }, drag: { x: false, y: false }, points: { size: 6 } },
    scales: {
      x: { range: () => [end() - span(), end()] },
      y: { range: (self, low, high) => [0, Math.max(high ?? 0, 1) * 1.1] },
    },
    axes: [
      { ...axis, size: 24, values: (self, splits) => splits.map(timeShown), space: 72 },
      { ...axis, size: 64, values: (self, splits) => splits.map((at) => format(at)), space: 36 },
    ],
    series: [{}, ...series.map(line)],
    hooks: { setCursor: [tell] },
  }, data, place);

  const update = () => {
    data = [seconds.map((one) => one.ms / 1000), ...series.map((one) => seconds.map((second) => one.value(second)))];
    if (!document.hidden && place.clientWidth) {
      plot ??= make();
      plot.setData(data);
    }
    tell();
  };
  const again = () => { plot?.destroy(); plot = null; update(); };
  const size = new ResizeObserver(() => {
    if (!plot) update();
    else if (plot.width !== place.clientWidth) plot.setSize({ width: place.clientWidth, height: HEIGHT });
  });
  size.observe(place);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again, { signal });
  signal.addEventListener("abort", () => { size.disconnect(); plot?.destroy(); });
  follow(update, signal);
  return figure;
}
