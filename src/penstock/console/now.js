// Now: the house as a drawing with its rates, and the last fifteen minutes as charts.

import { chart } from "./charts.js";
import { DOORS, isOpen } from "./doors.js";
import { api, count, duration, h, notice, rate, short, svg, timeOfDay } from "./kit.js";
import { follow, mean, newest, seconds, sum } from "./server_link.js";
import { sampleTraffic } from "./sample_traffic.js";

export async function mount(root, { signal }) {
  const [open, { streams }] = await Promise.all([
    Promise.all(DOORS.map(isOpen)), api("GET", "/v1/streams", { query: { sort: "traffic", limit: 5 }, signal }),
  ]);
  const sample = sampleTraffic(DOORS.filter((door, at) => open[at]), signal);
  const drawing = h("div", { class: "card house" });
  const caption = h("p", { class: "quiet" });
  root.append(
    h("div", { class: "head" }, h("h1", {}, "Now"), sample.button),
    sample.panel,
    streams.every((one) => one.next_index === 0) ? firstStart() : "",
    drawing, caption,
    h("div", { class: "cards" }, charts(open, signal)));

  const narrow = matchMedia("(max-width: 960px)");
  let house;
  const draw = () => {
    house = drawHouse(narrow.matches, open);
    drawing.replaceChildren(house.element);
    update();
  };
  const update = () => {
    house.update();
    caption.textContent = seconds.length
      ? `Rates are means of the last five seconds, at ${timeOfDay(seconds.at(-1).ms)}, of this node.`
      : "Waiting for the first second …";
  };
  narrow.addEventListener("change", draw, { signal });
  draw();
  follow(() => { if (!document.hidden) update(); }, signal);
  const title = root.querySelector(".notice h2");
  const hasCome = () => sum(seconds.map((one) => one.published)) > 0;
  if (title) follow(() => { if (hasCome()) title.textContent = "The first events have come"; }, signal);
}

const ids = (value) => (value === null ? "–" : `${short(value)} ids`);
const percent = (value) => (value === null ? "–" : `${short(value)} %`);
const notArchived = (second) => (second.archived === undefined ? null : Math.max(0, second.upto - second.archived));

const firstStart = () => notice("empty", "Nothing has been published yet",
  "Three ways to see it work:",
  h("ol", {},
    h("li", {}, h("strong", {}, "Send sample traffic"),
      ", above: this page publishes and listens through every open door for a minute."),
    h("li", {}, h("a", { href: "#/try" }, "Try it"), ": one door at a time, with the real requests to copy."),
    h("li", {}, "The two curl lines that ", h("code", {}, "./penstock up"), " printed.")));

// ── the drawing ──────────────────────────────────────────────────────────────────────────────────

/** Where boxes [x, y, width, height] and arrows stand: from left to right, or downwards where there is little room. */
const PLANS = {
  wide: {
    size: [1200, 320],
    publishers: [0, 120, 176, 72], log: [352, 96, 208, 120], pipeline: [352, 256, 208, 56],
    publish: { path: "M176 156H344", label: [260, 148] }, archive: { path: "M456 216V248" },
    door: (at) => [760, 4 + at * 53, 200, 44], recipients: (at) => [1048, 4 + at * 53, 152, 44],
    deliver: (at) => ({
      path: `M560 156C640 156 600 ${26 + at * 53} 680 ${26 + at * 53}H752`, label: [716, 20 + at * 53],
    }),
    receive: (at) => ({ path: `M960 ${26 + at * 53}H1040` }),
  },
  narrow: {
    size: [358, 480],
    publishers: [0, 0, 200, 56], log: [0, 88, 200, 104], pipeline: [238, 88, 120, 104],
    publish: { path: "M100 56V80", label: [108, 73], start: true }, archive: { path: "M200 140H230" },
    door: (at) => [32, 216 + at * 44, 144, 36], recipients: (at) => [242, 216 + at * 44, 116, 36],
    deliver: (at) => ({ path: `M12 192V${234 + at * 44}H24` }),
    receive: (at) => ({ path: `M176 ${234 + at * 44}H234`, label: [206, 229 + at * 44] }),
  },
};

function drawHouse(isNarrow, open) {
  const plan = isNarrow ? PLANS.narrow : PLANS.wide;
  const element = svg("svg", { viewBox: `0 0 ${plan.size.join(" ")}`, role: "img", class: "drawing" },
    svg("defs", {}, svg("marker", {
      id: "tip", viewBox: "0 0 8 8", refX: 2, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto",
      markerUnits: "userSpaceOnUse",
    }, svg("path", { d: "M0 0L8 4L0 8Z" }))));
  const arrow = ({ path, label, start }) => {
    const line = svg("path", { d: path, class: "arrow", "marker-end": "url(#tip)" });
    const text = label && svg("text", { x: label[0], y: label[1], class: start ? "flow start" : "flow" });
    element.append(line, text ?? "");
    return (perSecond) => {
      line.classList.toggle("busy", perSecond > 0);
      line.setAttribute("stroke-width", (1 + 1.5 * Math.log10(1 + perSecond)).toFixed(1));
      if (text) text.textContent = rate(perSecond);
    };
  };
  const box = ([x, y, width, height], title, lines = 1) => {
    const top = y + height / 2 - (lines * 16) / 2;
    const texts = Array.from({ length: lines },
      (_, at) => svg("text", { x: x + 12, y: top + 4 + (at + 1) * 16, class: "quiet" }));
    element.append(svg("rect", { x: x + 0.5, y: y + 0.5, width: width - 1, height: height - 1, rx: 4 }),
      svg("text", { x: x + 12, y: top + 4, class: "title" }, title), ...texts);
    return (...shown) => texts.forEach((text, at) => { text.textContent = shown[at] ?? ""; });
  };
  const publish = arrow(plan.publish);
  const archive = arrow(plan.archive);
  const publishers = box(plan.publishers, "Publishers");
  const log = box(plan.log, "Log", 4);
  const pipeline = box(plan.pipeline, "Pipeline");
  const doors = DOORS.map((door, at) => ({
    door, open: open[at], deliver: arrow(plan.deliver(at)), receive: arrow(plan.receive(at)),
    tell: box(plan.door(at), door.title, 0), recipients: box(plan.recipients(at), "", 0), at,
  }));
  for (const one of doors) {
    const [x, y, , height] = plan.recipients(one.at);
    one.told = svg("text", { x: x + 12, y: y + height / 2 + 4, class: "title" });
    element.append(one.told);
  }

  const update = () => {
    const now = seconds.at(-1);
    if (!now) return;
    const published = mean((one) => one.published ?? 0);
    publish(published);
    publishers(`${rate(mean((one) => one.requests ?? 0))} requests`);
    log(`up to id ${count(now.upto ?? 0)}`, `p50 ${duration(newest((one) => one.p50_ms))}`,
      `p99 ${duration(newest((one) => one.p99_ms))}`, "publish → receive");
    const behind = notArchived(now);
    archive(behind === null ? 0 : published);
    pipeline(behind === null ? "not running" : behind ? `${short(behind)} ids behind` : "all archived");
    const said = doors.map(({ door, open: isOpened, deliver, receive, told }) => {
      const delivered = mean((one) => one.delivered?.[door.id] ?? 0);
      deliver(delivered);
      receive(delivered);
      told.textContent = isOpened ? `${count(now.live?.[door.id] ?? 0)} connected` : "closed";
      return `${door.title}: ${rate(delivered)} delivered, ${told.textContent}`;
    });
    element.setAttribute("aria-label", [`${rate(published)} published`, ...said].join("; "));
  };
  return { element, update };
}

// ── the charts ───────────────────────────────────────────────────────────────────────────────────

function charts(open, signal) {
  const perSecond = (value) => (second) => (1000 * value(second)) / second.span_ms;
  const opened = DOORS.filter((door, at) => open[at]);
  const live = (door) => (one) => one.live?.[door.id] ?? 0;
  const delivered = (door) => perSecond((one) => one.delivered?.[door.id] ?? 0);
  const rates = (names) => Object.entries(names).map(([label, name]) =>
    ({ label, value: perSecond((one) => one[name] ?? 0) }));
  return [
    { title: "Published", about: "Entries that came into the log", format: rate,
      series: rates({ events: "published" }) },
    { title: "Delivered", about: "Entries and items handed to recipients, by door", format: rate,
      series: opened.map((door) => ({ label: door.title, value: delivered(door) })) },
    { title: "Publish → receive", about: "From the append to the recipient's socket, of a sample", format: duration,
      series: ["p50", "p99"].map((label) => ({ label, value: (one) => one[`${label}_ms`] ?? null })) },
    { title: "Connected", about: "Live answers and WebSockets that are open, by door", format: short,
      series: opened.map((door) => ({ label: door.title, value: live(door) })) },
    { title: "Lag of the slowest", about: "Ids between the slowest reader and the log's end", format: ids,
      series: [{ label: "slowest", value: (one) => one.lag ?? 0 }], note: (one) => one.slowest },
    { title: "Errors", about: "Failed by this server; given up, expired or dead; made again", format: rate,
      series: rates({ failed: "failed", "not delivered": "undelivered", retried: "retried" }) },
    { title: "Pipeline lag", about: "Ids that are not in the lake yet", format: ids,
      series: [{ label: "not archived", value: notArchived }],
      note: (one) => one.pipeline_ms && `last written ${duration(one.pipeline_ms)} before` },
    { title: "Server CPU", about: "CPU time of the server's process, of one core", format: percent,
      series: [{ label: "process", value: (one) => (100 * (one.cpu_ms ?? 0)) / one.span_ms }] },
  ].map((one) => chart({ ...one, signal }));
}
