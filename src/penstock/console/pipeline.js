// Pipeline: how fresh the lake is, what its jobs did, what the last audit said, and sums by hour and door.

import { api, bytes, count, cut, duration, facts, fill, h, many, moment, notice, state, table } from "./kit.js";
import { hourly } from "./hourly.js";
import { sqlBox } from "./sql.js";
import { choice, field, stateOf } from "./states.js";

const PUBLISHED = "accepted"; // as the rollup calls what was published; it has no door
const DAYS = [["24", "last 24 hours"], ["48", "last 2 days"], ["168", "last 7 days"], ["720", "last 30 days"]];

export async function mount(root, { signal }) {
  const [now, hours, doors] = [h("div", { class: "view" }), h("div", { class: "view" }), h("div")];
  const spans = choice("span", DAYS, "48", () => charts());
  const charts = () => fill(hours, () => sums(spans.value, doors, signal), signal);
  root.append(h("div", { class: "head" }, h("h1", {}, "Pipeline"),
    h("button", { type: "button", onclick: () => { show(); charts(); } }, "Look again")), now,
    h("h2", {}, "By hour"), h("div", { class: "fields" }, field("Span", spans), doors), hours, sqlBox(signal));
  const show = () => fill(now, () => overview(signal), signal);
  await Promise.all([show(), charts()]);
}

async function overview(signal) {
  const [pipeline, sizes, plan] = await Promise.all(["/v1/pipeline", "/v1/pipeline/tables",
    "/v1/retention/plan"].map((path) => api("GET", path, { signal })));
  if (!Object.keys(pipeline.tables).length && !pipeline.driver) {
    return [notice("empty", "No pipeline has run here",
      "It archives the log as tables, folds the ledger into deliveries and sums up by hour.",
      "Its audit proves that nothing is missing.",
      h("p", {}, "Start it with ", h("code", {}, "./penstock up"),
        ", which runs a driver beside the server; or run one job: ",
        h("code", {}, "./penstock pipeline archive --once"), ".")), retention(plan)];
  }
  return [h("div", { class: "pair" }, driver(pipeline), retention(plan)), tables(pipeline, sizes),
    audit(pipeline.audit), runs(pipeline.runs)];
}

const section = (title, ...content) =>
  h("section", { class: "card list", "aria-label": title }, h("h2", {}, title), content);

function driver({ driver: one, lake, epoch, newest, ms }) {
  const at = (text) => h("code", {}, cut(text, 48));
  return section("Driver", facts({
    state: one ? (one.alive ? state("ok", "works") : state("bad", `silent for ${duration(ms - one.seen_ms)}`))
      : state("off", "none runs"),
    "last heard of": one ? moment(one.seen_ms) : null, started: one ? moment(one.started_ms) : null,
    Spark: one ? `${one.spark}, ${one.master}` : null, process: one?.process ? at(one.process) : null,
    lake: lake ? at(lake) : "none", epoch: epoch.epoch ? at(epoch.epoch) : null, "newest id": count(newest),
  }));
}

function retention(plan) {
  return section("Retention", facts({
    "log keeps": plan.keep || "everything",
      "in the log": `ids ${count(plan.trimmed + 1)} to ${count(plan.newest)}, ${bytes(plan.bytes)}`,
    "may go": plan.allowed > plan.trimmed ? `up to id ${count(plan.allowed)}` : "nothing", because: plan.reason,
    "mailboxes of": plan.months.join(", ") || "no month yet", "looked at": moment(plan.ms),
  }));
}

function tables(pipeline, sizes) {
  const of = { deliveries: "ledger", positions: "ledger", unreadable: "ledger", rollup_hourly: "rollup",
    activity: "rollup" };
  const names = sizes.tables.length ? sizes.tables.map((one) => one.table) : Object.keys(pipeline.tables);
  const rows = names.map((name) =>
    ({ name, ...(sizes.tables.find((one) => one.table === name) ?? {}), job: pipeline.tables[of[name] ?? name] }));
  const list = table({
    label: "Tables",
    columns: [
      { title: "Table", class: "grow", cell: (one) => h("code", {}, one.name) },
      { title: "Freshness", cell: (one) =>
        (!one.job ? stateOf("", "never written") : one.job.lag
        ? stateOf("behind", `${many(one.job.lag, "id")} behind`) : stateOf("acked", "up to date")) },
      { title: "Up to id", class: "num", cell: (one) => count(one.job?.done) },
      { title: "At", cell: (one) => moment(one.job?.done_ms || null) },
      { title: "Rows", class: "num", cell: (one) => count(one.rows) },
      { title: "Files", class: "num", cell: (one) => count(one.files) },
      { title: "Size", class: "num", cell: (one) => bytes(one.bytes) },
    ],
  });
  list.show(rows, { now: true });
  return section("Tables", list.element, sizes.lake ? null
    : h("p", { class: "quiet" }, "Rows and sizes are known to a server that reads the lake: set lake.url."));
}

function audit(one) {
  if (!one) return section("Last audit",
    h("p", { class: "quiet" }, "None is recorded. ", h("code", {}, "./penstock audit"),
    " proves from the lake that nothing is missing or there twice."));
  const list = table({
    label: "Findings",
    columns: [
      { title: "Verdict", cell: (finding) => stateOf(finding.verdict) },
      { title: "Check", cell: (finding) => finding.check },
      { title: "What", class: "grow wraps", cell: (finding) => finding.words },
    ],
  });
  list.show(one.findings, { now: true });
  const counts = Object.entries(one.counts ?? {}).map(([what, number]) => `${count(number)} ${what}`).join(", ");
  return section("Last audit",
    h("p", { class: "row" }, one.verdict === "pass" ? state("ok", "passes") : state("bad", "FAILS"),
      h("span", {}, `up to id ${count(one.upto)}`),
      h("span", { class: "quiet" }, counts, " · ", moment(one.at_ms), `, took ${duration(one.seconds * 1000)}`)),
    one.findings.length ? list.element
      : h("p", { class: "quiet" }, "It had nothing to say: all that was published is there, once."), one.more
      ? h("p", { class: "quiet" }, `and ${count(one.more)} more`) : null);
}

function runs(by) {
  const rows = Object.entries(by).flatMap(([job, some]) => some.map((run) => ({ job, ...run }))).sort((a, b) =>
    b.at_ms - a.at_ms).slice(0, 30);
  const list = table({
    label: "Runs",
    columns: [
      { title: "Job", cell: (one) => h("code", {}, one.job) },
      { title: "Outcome", cell: (one) =>
        (one.error ? state("bad", "failed") : one.exit_code ? state("warn", `exit code ${one.exit_code}`)
        : state("ok", "done")) },
      { title: "What it said", class: "grow wraps",
        cell: (one) => h("span", { title: one.error ?? one.words },
        cut((one.error ?? one.words).split("\n")[0], 120)) },
      { title: "Began", cell: (one) => moment(one.at_ms) },
      { title: "Took", class: "num", cell: (one) => duration(one.seconds * 1000) },
    ],
  });
  list.show(rows, { now: true });
  return section("Last runs", rows.length ? list.element : h("p", { class: "quiet" }, "No run is recorded yet."));
}

// ── by hour ──────────────────────────────────────────────────────────────────────────────────────

async function sums(span, choices, signal) {
  const answer = await api("GET", "/v1/pipeline/hours", { query: { hours: span }, signal });
  if (!answer.lake) return notice("empty", "The server does not read a lake",
    "With lake.url set, what was published and delivered is drawn here, from the table rollup_hourly.");
  if (!answer.hours.length) return notice("empty", "Nothing is summed up for that span",
    "The job rollup runs every few seconds while a driver runs; an hour is drawn as soon as it has any sum.");
  const doors = [...new Set(answer.hours.map((one) => one.door).filter(Boolean))].sort();
  const place = h("div", { class: "pair" });
  const chosen = choice("rollup-door", [["", "every door"], ...doors], "", (door) => draw(door));
  const draw = (door) => {
    const rows = answer.hours.filter((one) => !one.door || !door || one.door === door);
    const at = new Map();
    for (const one of rows) at.set(one.hour_ms, [...(at.get(one.hour_ms) ?? []), one]);
    const hours = [];
    for (let hour = answer.since_ms; hour <= answer.hours.at(-1).hour_ms;
      hour += 3600e3) hours.push({ ms: hour, rows: at.get(hour) ?? [] });
    const total = (name) => (hour) => hour.rows.reduce((sum, one) => sum + (one.states[name] ?? 0), 0);
    const worst = (name, which) => (hour) => Math.max(...hour.rows.map((one) => one.latency_ms[name]?.[which] ?? 0))
      || null;
    const drawn = (title, about, series, format, unit) => hourly({ title, about, hours, format, unit, signal,
      series: Object.entries(series).map(([label, value]) => ({ label, value })) });
    const quantiles = (name) => ({ p50: worst(name, 0), p99: worst(name, 2) });
    const totals = Object.fromEntries(["sent", "acked", "expired", "dropped"].map((name) => [name, total(name)]));
    place.replaceChildren(
      drawn("Events published", "Entries of users' streams that were appended, by hour",
        { published: total(PUBLISHED) }, count, "events"),
      drawn("Deliveries", "Records of the ledger by hour", totals, count, "deliveries"),
      drawn("Published until sent", "Upper ends of classes that double", quantiles("sent"), duration),
      drawn("Published until acked", "Upper ends of classes that double", quantiles("acked"), duration));
  };
  draw("");
  choices.replaceChildren(field("Door", chosen));
  return [place, h("p", { class: "quiet" }, `${many(answer.hours.length, "sum")} by hour and door, looked at `,
    moment(answer.ms))];
}
