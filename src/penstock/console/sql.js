// Ask the lake: one question in SQL, its answer as a table. Part of the view Pipeline.

import { api, count, cut, duration, fill, h, many, notice, problem, say, table } from "./kit.js";
import { field } from "./states.js";

const EXAMPLES = [
  ["Which streams are the busiest?", `SELECT stream, count(*) AS events, sum(size) AS bytes, max(time) AS newest
FROM events WHERE kind = 'data' AND NOT starts_with(stream, '/_')
GROUP BY stream ORDER BY events DESC LIMIT 20`],
  ["What was not delivered, and why?", `SELECT door, state, reason, count(*) AS deliveries, min(recipient) AS example
FROM delivery_outcomes WHERE state NOT IN ('acked', 'sent')
GROUP BY ALL ORDER BY deliveries DESC LIMIT 20`],
  ["How fast do recipients confirm?", `SELECT door, count(*) AS confirmed,
       quantile_disc(epoch_ms(acked_time) - epoch_ms(sent_time), [0.5, 0.99]) AS p50_p99_ms
FROM delivery_outcomes WHERE acked_time IS NOT NULL AND sent_time IS NOT NULL
GROUP BY door ORDER BY confirmed DESC`],
];

/** The box, or why there is none here. */
export function sqlBox(signal) {
  const place = h("div", { class: "view" });
  fill(place, async () => box(await api("GET", "/v1/lake/sql", { signal }), signal), signal);
  return h("section", { class: "card list", "aria-label": "Ask the lake" }, h("h2", {}, "Ask the lake"), place);
}

function box(offer, signal) {
  if (!offer.lake) return h("p", { class: "quiet" }, "With lake.url set, the lake can be asked in SQL here.");
  if (!offer.installed) return notice("empty", "DuckDB is not installed beside the server",
    h("p", {}, "It answers questions in SQL about the lake, in a process that can read nothing else. ",
      h("code", {}, "./penstock install sql"), " adds it; the server need not be started again."));
  let running = null;
  const query = h("textarea", { id: "sql", rows: 5, spellcheck: "false", value: EXAMPLES[0][1], onkeydown: (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    if (!running) ask();
  } });
  const came = h("div", { class: "view", "aria-live": "polite" });
  const toggle = () => (running ? running.abort() : ask());
  const button = h("button", { type: "button", class: "primary", onclick: toggle }, "Ask");
  const examples = EXAMPLES.map(([title, text]) =>
    h("button", { type: "button", onclick: () => { query.value = text; ask(); } }, title));
  async function ask() {
    running?.abort();
    const mine = running = new AbortController();
    const began = performance.now();
    const put = (...content) => { if (mine === running) came.replaceChildren(...content); };
    button.textContent = "Stop";
    put(h("p", { class: "quiet" }, "DuckDB is asked …"));
    try {
      const ended = AbortSignal.any([signal, mine.signal]);
      const answer = await api("POST", "/v1/lake/sql", { body: { query: query.value }, signal: ended });
      put(...shown(answer, performance.now() - began));
    } catch (error) {
      put(error.name === "AbortError" ? h("p", { class: "quiet" }, "Stopped.") : problem(error));
    }
    if (mine !== running) return;
    running = null;
    button.textContent = "Ask";
  }
  return [field("One SELECT", query), h("div", { class: "row" }, button, examples),
    h("p", { class: "quiet" }, `Ctrl and Enter ask. Tables: ${offer.tables.join(", ") || "none yet"}. A question `,
      `has ${offer.seconds} s, ${offer.memory_mib} MiB and ${many(offer.rows, "row")}, and reads nothing else.`), came];
}

function shown({ columns, rows, cut: more }, ms) {
  const text = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));
  const cell = (value) => (value === null ? h("span", { class: "quiet" }, "NULL")
    : typeof value === "number" ? (Number.isInteger(value) ? count(value) : String(value))
      : h("span", { title: text(value) }, cut(text(value), 120)));
  const list = table({ label: "Answer", columns: columns.map(({ name, type }, at) => ({
    title: h("span", { title: type }, name), class: /^(u?int\d|decimal|double|(half)?float)/.test(type) ? "num" : null,
    cell: (row) => cell(row[at]) })) });
  list.show(rows, { now: true });
  const told = `${more ? "The first " : ""}${many(rows.length, "row")}, in ${duration(ms)}`;
  say(told);
  return [h("p", { class: "quiet" }, told), list.element];
}
