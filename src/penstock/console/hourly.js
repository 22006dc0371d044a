// A chart by hour. Series: {label, value(hour) → number or null}; the legend shows sums, or the hour under the pointer.

import { h } from "./kit.js";
import uPlot from "./vendor/uPlot.js";

const HEIGHT = 160;
const DASHES = [[], [8, 4], [2, 3], [12, 3, 2, 3]];
const cursor = uPlot.sync("hours");
const named = new Intl.DateTimeFormat("en-GB",
  { day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit" });
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function hourly({ title, about, series, hours, format, unit = "", signal }) {
  const place = h("div", { class: "plot", "aria-hidden": "true" });
  const values = series.map(() => h("span", { class: "value" }));
  const when = h("span", { class: "quiet" });
  const figure = h("figure", { class: "card chart" }, h("figcaption", {}, h("h2", { title: about }, title), when,
    h("p", { class: "keys" }, series.map((one, at) => h("span", { class: `key s${at}` }, one.label, values[at])))),
      place);
  const data = [hours.map((one) => one.ms / 1000), ...series.map((one) => hours.map(one.value))];
  let plot = null;

  const tell = () => {
    const at = plot?.cursor.idx ?? null;
    when.textContent = at === null ? (unit ? `${unit} in all` : "highest of all hours")
      : `hour from ${named.format(hours[at].ms)}`;
    values.forEach((node, line) => {
      const all = data[line + 1].filter((one) => one !== null);
      const whole = unit ? all.reduce((sum, one) => sum + one, 0) : Math.max(...all);
      node.textContent = at === null ? (all.length ? format(whole) : "–") : format(data[line + 1][at]);
    });
  };
  const axis = () => ({ stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false }, font: "11px system-ui" });
  const make = () => new uPlot({
    width: place.clientWidth, height: HEIGHT, legend: { show: false }, padding: [8, 8, 0, 0],
    cursor: { sync: { key: cursor.key }, drag: { x: false, y: false }, points: { size: 6 } },
    scales: { y: { range: (self, low, high) => [0, Math.max(high ?? 0, 1) * 1.1] } },
    axes: [{ ...axis(), size: 24, space: 96, values: (self, splits) => splits.map((at) => named.format(at * 1000)) },
      { ...axis(), size: 64, space: 36, values: (self, splits) => splits.map((at) => format(at)) }],
    series: [{}, ...series.map((one, at) =>
      ({ label: one.label, stroke: colour(`--s${at}`), width: 1.5, dash: DASHES[at],
      paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }))],
    hooks: { setCursor: [tell] },
  }, data, place);

  const size = new ResizeObserver(() => {
    if (!plot && place.clientWidth) plot = make();
    else if (plot && plot.width !== place.clientWidth) plot.setSize({ width: place.clientWidth, height: HEIGHT });
  });
  size.observe(place);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change",
    () => { plot?.destroy(); plot = place.clientWidth ? make() : null; }, { signal });
  signal.addEventListener("abort", () => { size.disconnect(); plot?.destroy(); });
  tell();
  return figure;
}
