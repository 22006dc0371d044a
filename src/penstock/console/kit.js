// What every view is built from: elements, requests, formats, lists that hold still.
// Text becomes text nodes, never markup: there is no innerHTML in the console, and the page's policy forbids it.

// ── elements ─────────────────────────────────────────────────────────────────────────────────────

const SVG = "http://www.w3.org/2000/svg";

/** An element. Properties: attributes, `on…` listeners; null and false leave one out. Children: nodes, text, lists. */
export const h = (tag, properties, ...children) => build(document.createElement(tag), properties, children);

/** The same for drawings. */
export const svg = (tag, properties, ...children) => build(document.createElementNS(SVG, tag), properties, children);

function build(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return element;
}

/** Tell people who do not see the page what has happened. */
export const say = (text) => { document.getElementById("said").textContent = text; };

// ── the token ────────────────────────────────────────────────────────────────────────────────────

const KEY = "penstock.token";

/** The token of this tab. It goes into the Authorization header and nowhere else. */
export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (text) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.removeItem(KEY),
};

// ── requests ─────────────────────────────────────────────────────────────────────────────────────

/** What the server refused, in its own words. */
export class Problem extends Error {
  constructor(status, code, message, remedy) {
    super(message);
    Object.assign(this, { status, code, remedy });
  }
}

/** A path with its query; parameters that are null or empty are left out. */
export function address(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

/**
 * Ask the server; the answer as it comes. Raises `Problem`, which is also raised when nobody answers.
 * The tab's token goes along, or another *bearer*; an empty one is none.
 */
export async function ask(method, path, { query, body, headers, signal, bearer } = {}) {
  const given = bearer ?? token.get();
  const sent = given ? { Authorization: `Bearer ${given}`, ...headers } : { ...headers };
  if (body !== undefined && typeof body === "object" && body.constructor === Object) {
    body = JSON.stringify(body);
    sent["Content-Type"] ??= "application/json";
  }
  let answer;
  try {
    answer = await fetch(address(path, query), { method, body, headers: sent, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "offline", "The server does not answer.", "Is it running? The console tries again by itself.");
  }
  if (answer.ok) return answer;
  const { error = {} } = await answer.json().catch(() => ({}));
  if (answer.status === 401 && bearer === undefined) dispatchEvent(new CustomEvent("token-refused"));
  const { code = `${answer.status}`, message = answer.statusText, remedy = "" } = error;
  throw new Problem(answer.status, code, message, remedy);
}

/** Ask the server for JSON. */
export async function api(method, path, options) {
  const answer = await ask(method, path, options);
  return answer.status === 204 ? null : answer.json();
}

/** The lines of an answer that stays open, as they come. */
export async function* linesOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      yield* lines;
    }
    if (rest) yield rest;
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Events of an answer in the form of server-sent events: {id, event, data}. */
export async function* eventsOf(answer) {
  let event = { data: [] };
  for await (const line of linesOf(answer)) {
    const text = line.endsWith("\r") ? line.slice(0, -1) : line;
    const colon = text.indexOf(":");
    if (text === "") {
      if (event.data.length || event.event) yield { ...event, data: event.data.join("\n") };
      event = { data: [] };
    } else if (colon !== 0) {
      const name = colon < 0 ? text : text.slice(0, colon);
      const value = colon < 0 ? "" : text.slice(colon + 1).replace(/^ /, "");
      if (name === "data") event.data.push(value);
      else event[name] = value;
    }
  }
}

/** Wait so many milliseconds, or raise AbortError when *signal* says so. */
export const pause = (ms, signal) => new Promise((resolve, reject) => {
  const stop = () => { clearTimeout(timer); reject(new DOMException("ended", "AbortError")); };
  const timer = setTimeout(() => { signal?.removeEventListener("abort", stop); resolve(); }, ms);
  if (signal?.aborted) stop();
  else signal?.addEventListener("abort", stop, { once: true });
});

/** Do *work* now and every *ms* until the view is left; a hidden page rests. Problems go to *failed*. */
export async function repeat(ms, signal, work, failed = () => {}) {
  while (!signal.aborted) {
    try {
      if (!document.hidden) await work();
    } catch (error) {
      if (signal.aborted) return;
      failed(error);
    }
    await pause(ms, signal).catch(() => {});
  }
}

/**
 * Questions of which only the newest counts: `ask(question, put)` puts the answer, unless something was asked after it
 * or the view was left meanwhile. What it fails with goes to *failed*, under the same conditions. Who looks again by
 * himself waits while `ask.waits()`: what a person has asked for goes before.
 */
export function newestOf(signal, failed) {
  let [newest, answered] = [0, 0];
  const ask = async (question, put) => {
    const mine = (newest += 1);
    let done;
    try {
      const answer = await question();
      done = () => put(answer);
    } catch (error) {
      done = () => failed(error);
    }
    if (mine !== newest || signal.aborted) return;
    answered = mine;
    done();
  };
  ask.waits = () => answered !== newest;
  return ask;
}

// ── numbers, moments, names ──────────────────────────────────────────────────────────────────────

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
/** 1 event, 2 events */
export const many = (value, thing) => `${count(value)} ${thing}${value === 1 ? "" : "s"}`;

const SCALES = [[1e9, "G"], [1e6, "M"], [1e4, "k"]];

/** 1,234,567 */
export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

/** A number for little room: 0.4, 12.3, 1,234, 56.7k. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  if (value > 0 && value < 0.05) return "<0.1";
  for (const [least, unit] of SCALES) {
    if (Math.abs(value) >= least) return `${(value / (least === 1e4 ? 1e3 : least)).toFixed(1)}${unit}`;
  }
  return Math.abs(value) < 100 && value % 1 ? value.toFixed(1) : whole.format(value);
}

export const rate = (value) => `${short(value)}/s`;

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const power = value < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(value) / 10));
  return `${power ? (value / 1024 ** power).toFixed(1) : value} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

/** A length of time given in milliseconds: 0.8 ms, 12 ms, 3.4 s, 5 min, 2 h, 3 d. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60e3) return `${(ms / 1e3).toFixed(1)} s`;
  if (ms < 3600e3) return `${Math.round(ms / 60e3)} min`;
  return ms < 48 * 3600e3 ? `${Math.round(ms / 3600e3)} h` : `${Math.round(ms / 86400e3)} d`;
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dated = new Intl.DateTimeFormat("en-GB", {
  day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit",
});

/** A moment, from milliseconds or ISO text: the time of today, else with its date. Hovering shows it in UTC. */
export function moment(at) {
  const date = new Date(at);
  if (at === null || at === undefined || Number.isNaN(date.getTime())) return h("span", {}, "–");
  const today = date.toDateString() === new Date().toDateString();
  return h("time", { datetime: date.toISOString(), title: date.toISOString() }, (today ? clock : dated).format(date));
}

/** The time of day of milliseconds, as text. */
export const timeOfDay = (ms) => clock.format(new Date(ms));

/** *text*, cut in the middle where it is longer than *most* characters. */
export function cut(text, most = 40) {
  const letters = [...text];
  if (letters.length <= most) return text;
  const head = Math.ceil((most - 1) / 2);
  return `${letters.slice(0, head).join("")}…${letters.slice(letters.length - (most - 1 - head)).join("")}`;
}

/** A name cut in the middle, whole on hover; with a button that copies the whole. */
export const name = (text, { most = 40, copies = false } = {}) => h("span", { class: "name" },
  h("span", { title: text }, cut(text, most)), copies ? copyButton(text) : null);

/** A small button that copies *text*, or what *text* returns. */
export function copyButton(text, label = "Copy") {
  const button = h("button", { class: "copy", type: "button", title: label, "aria-label": label, onclick: copy });
  async function copy(event) {
    event.stopPropagation();
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
      button.classList.add("done");
      say("Copied.");
      setTimeout(() => button.classList.remove("done"), 1200);
    } catch {
      say("The browser does not allow copying here.");
    }
  }
  return button;
}

// ── states, notices ──────────────────────────────────────────────────────────────────────────────

/** A state by colour and shape. Kinds: ok, wait, warn, bad, off. */
export const state = (kind, text) => h("span", { class: `state ${kind}` }, text);

/** A block instead of content: nothing here yet, loading, failed. Kinds: empty, loading, bad. */
export const notice = (kind, title, ...content) => h("div",
  { class: `notice ${kind}`, role: kind === "bad" ? "alert" : null },
  h("h2", {}, title), ...content.map((one) => (typeof one === "string" ? h("p", {}, one) : one)));

/** What is known of something, by its name; what is null, false or empty is left out. */
export const facts = (told) => h("dl", { class: "facts" },
  Object.entries(told).filter(([, value]) => value).map(([title, value]) => [h("dt", {}, title), h("dd", {}, value)]));

/** What went wrong, with what to do about it. */
export const problem = (error, retry) => notice("bad", error.message || String(error),
  error.remedy ? h("p", {}, error.remedy) : null,
  error.code ? h("p", { class: "quiet" }, `${error.code}${error.status ? `, HTTP ${error.status}` : ""}`) : null,
  retry ? h("button", { type: "button", onclick: retry }, "Try again") : null);

const fillings = new WeakMap(); // the newest of each place
/** Put into *place* what *work* returns; until then that it loads, and if it fails why. Only the newest work counts. */
export async function fill(place, work, signal) {
  const mine = {};
  fillings.set(place, mine);
  const counts = () => fillings.get(place) === mine && !signal?.aborted;
  const loading = () => { if (counts()) place.replaceChildren(notice("loading", "Loading …")); };
  const waiting = setTimeout(loading, 150);
  try {
    const content = await work();
    if (counts()) place.replaceChildren(...[content].flat());
  } catch (error) {
    if (counts()) place.replaceChildren(problem(error, () => fill(place, work, signal)));
  } finally {
    clearTimeout(waiting);
  }
}

// ── lists ────────────────────────────────────────────────────────────────────────────────────────

/** Whether somebody reads in *node*: the pointer or the focus is in it. */
export const isRead = (node) => node.matches(":hover") || node.matches(":focus-within");

/** Arrow keys walk through the focusable rows of *list*; one of them is in the tab order. */
export function walk(list, rows = "[data-row]") {
  const all = () => [...list.querySelectorAll(rows)];
  const give = (row) => { all().forEach((one) => { one.tabIndex = one === row ? 0 : -1; }); };
  list.addEventListener("focusin", (event) => { const row = event.target.closest(rows); if (row) give(row); });
  list.addEventListener("keydown", (event) => {
    const found = all();
    const at = found.indexOf(event.target.closest(rows));
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: found.length - 1 }[event.key];
    if (at < 0 || to === undefined || !found[to] || event.target.matches("input, select, textarea")) return;
    event.preventDefault();
    found[to].focus();
  });
  return { settle: () => { const found = all(); if (!found.some((row) => row.tabIndex === 0)) give(found[0]); } };
}

/**
 * A table. Columns: {title, cell(row) → node or text, class, sort}. `open(row)` makes rows answer to click and Enter.
 * `show(rows)` waits while somebody reads in it, unless it is told that it was asked for.
 */
export function table({ columns, open, label, sorted, onsort }) {
  const body = h("tbody");
  const sorter = (one) => h("button", { type: "button", class: "plain", onclick: () => onsort(one.sort) }, one.title);
  const head = columns.map((one) => {
    const order = sorted && one.sort === sorted ? "descending" : null;
    const title = one.sort && onsort ? sorter(one) : one.title;
    return h("th", { scope: "col", class: one.class, "aria-sort": order }, title);
  });
  const reached = open ? {} : { tabindex: 0, role: "group", "aria-label": label }; // so that keys can scroll it
  const element = h("div", { class: "scroll", ...reached },
    h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, head)), body));
  const steps = walk(body);
  let waiting = null;
  const put = (rows) => {
    waiting = null;
    const focused = [...body.children].indexOf(document.activeElement);
    body.replaceChildren(...rows.map((row) => {
      const line = h("tr", open ? { "data-row": "", tabindex: -1, onclick: () => open(row) } : {},
        columns.map((one) => h("td", { class: one.class }, one.cell(row))));
      const enter = (event) => { if (event.key === "Enter" && event.target === line) open(row); };
      if (open) line.addEventListener("keydown", enter);
      return line;
    }));
    if (open) steps.settle();
    if (focused >= 0) body.children[Math.min(focused, rows.length - 1)]?.focus(); // who asked goes on where he was
  };
  const release = () => setTimeout(() => { if (waiting && !isRead(body)) put(waiting); });
  element.addEventListener("pointerleave", release);
  element.addEventListener("focusout", release);
  const show = (rows, { now = false } = {}) => {
    if (!now && body.children.length && isRead(body)) waiting = rows;
    else put(rows);
  };
  return { element, show };
}
