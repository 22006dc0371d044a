// Try it: for each door its real requests, to run here or to copy, and what came of them.

import { DOORS, isOpen } from "./doors.js";
import { address, ask, copyButton, cut, h, isRead, linesOf, notice, timeOfDay, token } from "./kit.js";
import { PLAYS } from "./plays.js";
import { bePushed } from "./push.js";
import { socket } from "./sample_traffic.js";
import { field } from "./states.js";

export async function mount(root, { path, signal }) {
  const door = DOORS.find((one) => one.id === path[0]) ?? DOORS[0];
  const tabs = DOORS.map((one) =>
    h("a", { href: `#/try/${one.id}`, "aria-current": one === door ? "true" : null }, one.title));
  root.append(h("div", { class: "head" }, h("h1", {}, "Try it")),
    h("nav", { class: "tabs", "aria-label": "Doors" }, tabs), h("p", { class: "quiet" }, door.about));
  if (!(await isOpen(door))) {
    root.append(notice("empty", "This door is closed on this server",
      h("p", {}, "The setting ", h("code", {}, "server.doors"), " names those that are open; ", h("code", {}, "all"),
        " opens every one.")));
    return;
  }
  const play = PLAYS[door.id];
  const v = { ...play.fields };
  const came = transcript();
  const refresh = () => steps.forEach((one) => one.show());
  const steps = play.steps.map((step, at) => stepCard(step, at + 1, v, came, refresh, signal));
  const change = (event) => { v[event.target.name] = event.target.value; refresh(); };
  const fields = Object.keys(play.fields).map((id) =>
    field(id, h("input", { id: `f-${id}`, name: id, value: v[id], oninput: change })));
  root.append(play.about ? h("p", {}, play.about) : "", fields.length ? h("div", { class: "card fields" }, fields) : "",
    h("div", { class: "split" }, h("div", { class: "steps" }, steps.map((one) => one.element)), came.element));
}

/** One request: shown as it goes out, with buttons to run and to copy it. */
function stepCard(step, number, v, came, refresh, signal) {
  let running = null;
  const shown = h("pre", { class: "text", tabindex: 0, role: "group", "aria-label": `Request ${number}` });
  const run = h("button", { type: "button", onclick: () => (running ? running.abort() : start()) });
  const show = () => {
    const ready = !step.needs || v[step.needs];
    shown.textContent = ready ? written(step, step.request(v), true) : "Needs what step 1 answers: run that first.";
    run.disabled = !ready;
    run.textContent = running ? "Stop" : "Run";
    run.className = running ? "" : "primary";
  };
  const start = async () => {
    running = new AbortController();
    const ended = AbortSignal.any([signal, running.signal]);
    const tell = (text, kind = "came") => came.add(number, kind, text);
    const request = step.request(v);
    show();
    const way = isSocket(step) ? "WebSocket" : step.how === "push" ? "PushManager" : request.method ?? "GET";
    tell(`${way} ${cut(masked(request), 90)}`, "sent");
    try {
      await (RUNNERS[step.how] ?? askOnce)(request, { signal: ended, tell, v, step, refresh });
      if (step.how) tell("ended", "quiet");
    } catch (error) {
      if (ended.aborted) tell("stopped", "quiet");
      else tell([error.code, error.message, error.remedy].filter(Boolean).join(" · "), "bad");
    }
    running = null;
    refresh();
  };
  const copy = copyButton(() => written(step, step.request(v), false), isScript(step) ? "Copy" : "Copy as curl");
  show();
  const element = h("section", { class: "card step", "aria-label": step.title },
    h("div", { class: "row" }, h("h2", {}, `${number}. ${step.title}`), copy, run),
    step.about ? h("p", { class: "quiet" }, step.about) : null, shown);
  return { show, element };
}

// ── how steps run ────────────────────────────────────────────────────────────────────────────────

const RUNNERS = { lines: followLines, events: followEvents, packs: listenToPacks, agent: beUserAgent, push: bePushed };

const isSocket = (step) => step.how === "packs" || step.how === "agent";
const isScript = (step) => isSocket(step) || step.how === "push";

async function askOnce(request, { signal, tell, v, step }) {
  const answer = await ask(request.method ?? "GET", request.path, { ...request, signal });
  const text = await answer.text();
  tell(`HTTP ${answer.status} ${text}`);
  step.keep?.(JSON.parse(text), v);
}

async function followLines(request, { signal, tell }) {
  const answer = await ask(request.method ?? "GET", request.path, { ...request, signal });
  tell(`HTTP ${answer.status}, and stays open`);
  for await (const line of linesOf(answer)) if (line) tell(line);
}

function followEvents(request, { signal, tell }) {
  const source = new EventSource(address(request.path, request.query));
  const hear = ({ type, data, lastEventId }) => {
    if (data === undefined) tell("the wire is open");
    else tell(`${lastEventId ? `id ${lastEventId} ` : ""}${type}: ${data}`);
  };
  for (const type of ["message", "open", "gap", "reset", "replaced", "expired"]) source.addEventListener(type, hear);
  return new Promise((resolve, reject) => {
    source.addEventListener("replaced", () => resolve());
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) reject(new Error("The server refused the wire."));
      else tell("broken; the browser comes back by itself", "quiet");
    });
    signal.addEventListener("abort", () => reject(new DOMException("ended", "AbortError")));
  }).finally(() => source.close());
}

/** A WebSocket until it is closed; *hear(text, send)* gets what comes. */
async function followSocket(request, { signal, tell }, hear, first, protocols) {
  let opened;
  const send = (text) => { tell(text, "sent"); opened.send(text); };
  const heard = (text) => { tell(text); hear(text, send); };
  opened = await socket(address(request.path, request.query), signal, heard, protocols);
  tell("the WebSocket is open");
  if (first) send(first);
  await new Promise((resolve) => { opened.addEventListener("close", resolve); });
}

function listenToPacks(request, how) {
  return followSocket(request, how, (text, send) => {
    const ids = Object.keys(JSON.parse(text)).filter((id) => id !== "0"); // 0 is no pack: the session has ended
    if (ids.length) send(ids.join(","));
  });
}

function beUserAgent(request, how) {
  const hear = (text, send) => {
    const { messageType, pushEndpoint, channelID, version } = JSON.parse(text);
    const say = (value) => send(JSON.stringify(value));
    if (messageType === "hello") say({ messageType: "register", channelID: crypto.randomUUID() });
    if (messageType === "notification") say({ messageType: "ack", updates: [{ channelID, version, code: 100 }] });
    if (messageType === "register") {
      how.v.endpoint = new URL(pushEndpoint).pathname;
      how.refresh();
    }
  };
  const hello = JSON.stringify({ messageType: "hello", use_webpush: true });
  return followSocket(request, how, hear, hello, ["push-notification"]);
}

// ── how requests are written ─────────────────────────────────────────────────────────────────────

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const masked = ({ path, query }) => address(path, query).replace(/(access_token|sessionKey)=[^&]+/g, "$1=…");

const SUBSCRIBE = `registration = await navigator.serviceWorker.register("/console/worker.js")
subscription = await registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey })`;

/** The request as a command, or as JavaScript where that is what runs. Hidden, it shows no token. */
function written(step, request, hidden) {
  if (step.how === "push") return `${SUBSCRIBE}\nPOST ${request.path} {subscription, "stream": "${request.stream}"}`;
  const { method = "GET", path, query, body, bearer = token.get() } = request;
  const url = `${location.origin}${hidden ? masked(request) : address(path, query)}`;
  if (isSocket(step)) {
    const protocols = step.how === "agent" ? ', ["push-notification"]' : "";
    return `new WebSocket(${JSON.stringify(url.replace(/^http/, "ws"))}${protocols})`;
  }
  const headers = { ...(bearer ? { Authorization: `Bearer ${hidden ? "…" : bearer}` } : {}), ...request.headers };
  const lines = [`curl ${step.how ? "-N " : ""}${method === "GET" ? "" : `-X ${method} `}${quoted(url)}`];
  for (const [name, value] of Object.entries(headers)) lines.push(`-H ${quoted(`${name}: ${value}`)}`);
  if (body !== undefined) lines.push(`--data-binary ${quoted(body)}`);
  return lines.join(" \\\n  ");
}

/** What went out and came in, in order; it follows the end unless somebody reads in it. */
function transcript() {
  const list = h("div", { class: "rows", role: "log", tabindex: 0, "aria-label": "What came" });
  const empty = notice("loading", "Run a step: what goes out and what comes is shown here.");
  const add = (number, kind, text) => {
    empty.remove();
    const arrow = { sent: "→", came: "←" }[kind] ?? "·";
    list.append(h("div", { class: `said ${kind}` },
      h("span", { class: "quiet" }, `${timeOfDay(Date.now())} ${number}. ${arrow}`),
      h("span", { class: "mono" }, text.slice(0, 4000))));
    while (list.children.length > 300) list.firstChild.remove();
    if (!isRead(list)) list.scrollTop = list.scrollHeight;
  };
  const element = h("section", { class: "card detail came", "aria-label": "Transcript" },
    h("h2", {}, "What came"), empty, list);
  return { add, element };
}
