// A chart by hour. Series: {label, value(hour) → number or null}; the legend shows sums, or the hour under the pointer.

import { plotted } from "./charts.js";
import uPlot from "./vendor/uPlot.js";

const cursor = uPlot.sync("hours");
const named = new Intl.DateTimeFormat("en-GB",
  { day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit" });

export function hourly({ title, about, series, hours, format, unit = "", signal }) {
  const data = [hours.map((one) => one.ms / 1000), ...series.map((one) => hours.map(one.value))];
  const tell = () => {
    const at = drawn.pointed();
    drawn.when.textContent = at === null ? (unit ? `${unit} in all` : "highest of all hours")
      : `hour from ${named.format(hours[at].ms)}`;
    drawn.values.forEach((node, line) => {
      const all = data[line + 1].filter((one) => one !== null);
      const whole = unit ? all.reduce((sum, one) => sum + one, 0) : Math.max(...all);
      node.textContent = at === null ? (all.length ? format(whole) : "–") : format(data[line + 1][at]);
    });
  };
  const drawn = plotted({
    title, about, height: 160, sync: cursor, padding: [8, 8, 0, 0], series, format, tell, signal,
    line: { paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } },
    x: { values: (self, splits) => splits.map((at) => named.format(at * 1000)), space: 96 },
  });
  drawn.draw(data);
  tell();
  return drawn.element;
}
