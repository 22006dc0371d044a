// Way of a message: who has it, who should, and for each of them what happened when.

import {
  api, count, copyButton, cut, duration, fill, h, many, moment, name, newestOf, notice, problem, table,
} from "./kit.js";
import { choice, field, FINAL, fitting, lookOf, MEANING, pager, stateOf } from "./states.js";

const PAGE = 50;
const AREA = 160_000; // square pixels that the picture of all recipients takes
const [SMALLEST, LARGEST] = [4, 16]; // pixels of one recipient in it

export async function mount(root, { path, signal }) {
  const what = path.join("/");
  const field = h("input", { id: "what", value: what, autocomplete: "off", spellcheck: "false",
    placeholder: "an event's id, or a message id" });
  const go = (event) => {
    event.preventDefault();
    if (field.value.trim()) location.hash = `#/way/${encodeURIComponent(field.value.trim())}`;
  };
  const place = h("div", { class: "view" });
  root.append(h("div", { class: "head" }, h("h1", {}, "Way of a message")),
    h("form", { class: "row", onsubmit: go, role: "search" },
      h("label", { for: "what", class: "visually-hidden" }, "Id of an event or of a message"), field,
      h("button", { class: "primary" }, "Show its way")), place);
  if (!what) {
    place.append(notice("empty", "Which message?",
      "Every publish answers with an id; an emit or a push answers with a message id.",
      "Give one of them, and see who has it, who should, and what happened on the way.",
      h("p", {}, "Or pick an entry of a ", h("a", { href: "#/streams" }, "stream"), " and follow its link.")));
    field.focus();
    return;
  }
  await fill(place, () => wayOf(what, signal), signal);
}

const look = (what, query, signal) => api("GET", "/v1/why/recipients", { query: { entry: what, ...query }, signal });

async function wayOf(what, signal) {
  const wanted = { search: "", state: "", door: "", from: 0 };
  const first = await look(what, { limit: PAGE }, signal);
  const detail = h("section", { class: "card detail", "aria-label": "One recipient" },
    notice("loading", "Pick a recipient to see what happened when."));
  const pick = (one) => {
    detail.replaceChildren(timeline(first, one, signal));
    if (innerWidth < 800) detail.scrollIntoView({ block: "start" });
  };
  const list = table({
    label: "Recipients", open: pick,
    columns: fitting([
      { title: "Recipient", class: "grow", cell: (one) => name(one.recipient, { most: innerWidth < 800 ? 16 : 44 }) },
      { title: "Door", cell: (one) => one.door },
      { title: "State", cell: (one) => stateOf(one.state) },
      { title: "After", class: "num", cell: (one) => after(first, one.steps.at(-1)) },
      { title: "Reason", wide: true, cell: (one) => h("span", { title: reasonOf(one) }, cut(reasonOf(one), 40)) },
    ]),
  });
  const nobody = notice("empty", "Nobody is found",
    "No recipient has that in its name, in that state, over that door.");
  const pages = pager(PAGE, (begin) => ask({ from: begin }));
  const place = h("div", {}, list.element);
  const newest = newestOf(signal, (error) => place.replaceChildren(problem(error)));
  const ask = (change) => {
    Object.assign(wanted, { from: 0 }, change);
    newest(() => look(what, { ...wanted, limit: PAGE }, signal), put);
  };
  const put = (page) => {
    list.show(page.recipients, { now: true });
    pages.show(wanted.from, page.found);
    place.replaceChildren(page.found ? list.element : nobody);
  };
  put(first);
  const search = h("input", { id: "search", type: "search", placeholder: "a part of the name",
    oninput: () => ask({ search: search.value.trim() }) });
  const states = choice("state", [["", "every state"], ...Object.keys(first.states)], "", (state) => ask({ state }));
  const doors = choice("door", [["", "every door"], ...Object.keys(first.doors)], "", (door) => ask({ door }));
  const choose = (state) => { states.value = state; ask({ state }); };
  const newestPick = newestOf(signal, (error) => detail.replaceChildren(problem(error)));
  const one = (at) => newestPick(() => look(what, { from: at, limit: 1 }, signal),
    ({ recipients: [found] }) => { if (found) pick(found); });
  return [facts(first), ...(first.total
    ? [picture(first, choose, one, signal), h("div", { class: "split" },
      h("div", { class: "card list" },
        h("div", { class: "fields" }, field("Search", search), field("State", states), field("Door", doors)), place,
        pages.element), detail)]
    : [notice("empty", "Nothing is recorded of anybody",
      "Nobody was subscribed when it came, or nobody has come to it yet. Whoever reads it later is recorded then.")])];
}

const reasonOf = (one) => one.steps.findLast((step) => step.reason)?.reason ?? "";
const after = (way, step) => (way.accepted_ms === null || !step || step.state === "waiting" ? ""
  : `+${duration(Math.max(0, step.ms - way.accepted_ms))}`);

function facts(way) {
  const told = {
    [way.kind === "message" ? "message" : "id"]: h("span", {}, String(way.entry), copyButton(String(way.entry))),
    stream: way.stream ? h("a", { href: `#/streams/${encodeURIComponent(way.stream)}` },
      name(way.stream, { most: 80 })) : null,
    "accepted and stored": way.accepted_ms === null ? null : moment(way.accepted_ms),
    kept: way.kind === "message" ? "in mailboxes"
      : `in the ${way.cold ? "lake" : "log"}${way.kind === "data" ? "" : `, its body is ${way.kind}`}`,
    recipients: `${count(way.total)}${way.complete ? "" : " or more: not all that was recorded could be read"}`,
    "looked at": moment(Date.now()),
  };
  return h("dl", { class: "facts card columns" },
    Object.entries(told).filter(([, value]) => value)
      .map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, value))));
}

// ── the picture ──────────────────────────────────────────────────────────────────────────────────

/** Everybody as one small shape, by state; in the order of the list, so that a place in it is a recipient. */
function picture(way, choose, pick, signal) {
  const size = Math.max(SMALLEST, Math.min(LARGEST, Math.floor(Math.sqrt(AREA / way.total))));
  let begin = 0;
  const groups = Object.entries(way.states).map(([state, total]) => {
    const group = cells(state, total, size, begin, pick, signal);
    begin += total;
    return h("div", { class: "crowd" },
      h("button", { type: "button", class: "plain", title: MEANING[state] ?? "", onclick: () => choose(state) },
        stateOf(state), h("span", { class: "value" }, count(total))), group);
  });
  const said = Object.entries(way.states).map(([state, total]) => `${count(total)} ${state}`);
  return h("figure", { class: "card crowds",
    "aria-label": `${many(way.total, "recipient")}: ${said.join(", ")}` }, groups);
}

/** The crowd of one state on a canvas; it is drawn again when its width or the colours change. */
function cells(state, total, size, begin, pick, signal) {
  const canvas = h("canvas", { role: "img", "aria-label": `${many(total, "recipient")} ${state}`,
    title: "One shape is one recipient: click it to see its way" });
  const holder = h("div", { class: `cells ${lookOf(state)}` }, canvas);
  let columns = 0;
  const draw = (anew) => {
    const across = Math.max(1, Math.floor(holder.clientWidth / size));
    if (!holder.clientWidth || (across === columns && anew !== true)) return;
    columns = across;
    const [rows, step] = [Math.ceil(total / columns), Math.round(size * (devicePixelRatio || 1))];
    canvas.width = Math.min(columns, total) * step;
    canvas.height = rows * step;
    canvas.style.width = `${Math.min(columns, total) * size}px`;
    const pen = canvas.getContext("2d");
    pen.fillStyle = pen.createPattern(tile(lookOf(state), step, getComputedStyle(holder).color), "repeat");
    pen.fillRect(0, 0, canvas.width, (rows - 1) * step);
    pen.fillRect(0, (rows - 1) * step, (total - (rows - 1) * columns) * step, step);
  };
  canvas.addEventListener("click", (event) => {
    const at = Math.floor(event.offsetY / size) * columns + Math.floor(event.offsetX / size);
    if (at < total) pick(begin + at);
  });
  const width = new ResizeObserver(draw);
  width.observe(holder);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(true), { signal });
  signal.addEventListener("abort", () => width.disconnect());
  return holder;
}

/** One shape of so many pixels: a crowd is a pattern of it, however large. */
function tile(look, step, colour) {
  const canvas = h("canvas", { width: step, height: step });
  const pen = canvas.getContext("2d");
  pen.fillStyle = pen.strokeStyle = colour;
  SHAPES[look](pen, 0, 0, step - (step > 6 ? 2 : 1));
  return canvas;
}

const SHAPES = {
  ok: (pen, x, y, size) => { pen.beginPath(); pen.arc(x + size / 2, y + size / 2, size / 2, 0, 7); pen.fill(); },
  wait: (pen, x, y, size) => { pen.beginPath(); pen.lineWidth = Math.max(1.5, size / 6);
    pen.arc(x + size / 2, y + size / 2, (size - pen.lineWidth) / 2, 0, 7); pen.stroke(); },
  warn: (pen, x, y, size) => { pen.beginPath();
    pen.moveTo(x + size / 2, y); pen.lineTo(x + size, y + size); pen.lineTo(x, y + size); pen.fill(); },
  bad: (pen, x, y, size) => pen.fillRect(x, y, size, size),
  off: (pen, x, y, size) => pen.fillRect(x, y + size / 2 - 1, size, 2),
};

// ── one recipient ────────────────────────────────────────────────────────────────────────────────

function timeline(way, one, signal) {
  const words = h("p", { class: "quiet" });
  api("GET", "/v1/why", { query: { entry: way.entry, recipient: one.recipient }, signal })
    .then((answer) => { words.textContent = answer.words; }, () => {});
  const steps = way.accepted_ms === null ? []
    : [{ ms: way.accepted_ms, state: "accepted" }, { ms: way.accepted_ms, state: "stored" }];
  const missing = FINAL.includes(one.state) ? []
    : [h("li", { class: "stop" }, stateOf("", "not confirmed"), h("span", { class: "quiet" }, "so far"))];
  return h("article", {}, h("h2", {}, name(one.recipient, { most: 60, copies: true })),
    h("p", { class: "row" }, stateOf(one.state), h("span", { class: "quiet" }, `over ${one.door}`)),
    h("ol", { class: "journey" }, [...steps,
      ...one.steps].map((step) => h("li", { class: "stop" }, stateOf(step.state), moment(step.ms),
      h("span", { class: "quiet" }, step.ms > way.accepted_ms ? after(way, step) : ""),
      step.reason ? h("p", {}, step.reason) : null)), missing), words);
}
