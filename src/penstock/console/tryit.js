// Try it: for each door its real requests, to run here or to copy, and what came of them.

import { DOORS, isOpen } from "./doors.js";
import { address, ask, copyButton, cut, h, isRead, linesOf, notice, timeOfDay, token } from "./kit.js";
import { socket } from "./traffic.js";

/**
 * What can be tried at each door. `fields` are shared by its steps as `v`; `keep` takes more out of an answer.
 * A step's `request(v)` is what goes out: {method, path, query, headers, body, bearer}. `how` says what runs it:
 * nothing for one answer, "lines" for one that stays open, "events" for an EventSource, or a function for a WebSocket.
 */
const PLAYS = {
  v1: {
    fields: { stream: "/demo", body: '{"hello": "world"}' },
    steps: [
      { title: "Follow a stream", how: "lines", request: (v) => ({ path: "/v1/tail", query: { streams: v.stream } }) },
      { title: "Publish into it", request: (v) => ({ method: "POST", path: "/v1/publish", query: { stream: v.stream }, body: v.body }) },
      { title: "Read it back", request: (v) => ({ path: "/v1/read", query: { streams: v.stream, limit: 10 } }) },
    ],
  },
  sps: {
    fields: { uid: "42", room: "earth", body: '{"text": "hello"}' },
    steps: [
      { title: "A token for the device, which can only listen", request: (v) => ({ method: "POST", path: "/v1/tokens", body: JSON.stringify({ uid: Number(v.uid), ttl: 600 }) }),
        keep: (answer, v) => { v.token = answer.token; } },
      { title: "Open its wire with an EventSource", how: "events", needs: "token", about: "An EventSource sends no headers, so this token travels in the address; it ends after ten minutes.",
        request: (v) => ({ path: "/subscribe", query: { uid: v.uid, hid: "console", tid: v.room, format: "sse", access_token: v.token }, bearer: "" }) },
      { title: "Notify the user", request: (v) => ({ method: "POST", path: "/notify_to_user", query: { uid: v.uid }, body: v.body }) },
      { title: "Notify the room", request: (v) => ({ method: "POST", path: "/notify_to_room", query: { tid: v.room }, body: v.body }) },
    ],
  },
  msgstream: {
    fields: { actor: "alice", type: "shop.purchase", data: '{"item": "boots"}' },
    steps: [
      { title: "A session for the actor", request: (v) => ({ method: "POST", path: "/v1/sessions", body: JSON.stringify({ actorId: v.actor, ttl: 600 }) }),
        keep: (answer, v) => { v.sessionKey = answer.sessionKey; } },
      { title: "Listen with a WebSocket, and confirm what comes", needs: "sessionKey", how: listenToPacks,
        request: (v) => ({ path: "/msgstream", query: { sessionKey: v.sessionKey }, bearer: "" }) },
      { title: "Or ask with a long poll", needs: "sessionKey", about: "It is answered by the next pack, or empty after a minute. It takes the WebSocket's place.",
        request: (v) => ({ path: "/msgstream", query: { transport: "longpolling", sessionKey: v.sessionKey }, bearer: "" }) },
      { title: "Emit a pack", request: (v) => ({ method: "POST", path: "/v1/emit", body: `{"actors":[${JSON.stringify(v.actor)}],"messages":[[${JSON.stringify(v.type)},${v.data}]]}` }) },
    ],
  },
  webpush: {
    about: "This page plays the browser's part: a user agent over its WebSocket. To have a real browser do it, a page asks "
      + "navigator.serviceWorker and pushManager.subscribe({userVisibleOnly: true, applicationServerKey}), with the key below; docs/webpush.md has the whole page.",
    fields: {},
    steps: [
      { title: "Be a user agent: say hello, register a channel", how: beUserAgent, request: () => ({ path: "/", bearer: "" }) },
      { title: "Push to the endpoint", needs: "endpoint", about: "Who knows the endpoint may send; without a body nothing has to be encrypted.",
        request: (v) => ({ method: "POST", path: v.endpoint, headers: { TTL: "60" }, bearer: "" }) },
      { title: "The key that pages subscribe with", request: () => ({ path: "/v1/webpush/key", bearer: "" }) },
    ],
  },
  trickle: {
    fields: { channel: "demo", segment: "one segment, whole" },
    steps: [
      { title: "Make the channel", request: (v) => ({ method: "POST", path: `/trickle/${encodeURIComponent(v.channel)}`, headers: { "Expect-Content": "text/plain" } }) },
      { title: "Read the next segment as it is written", how: "lines", about: "No answer begins before the segment's first byte.", request: (v) => ({ path: `/trickle/${encodeURIComponent(v.channel)}/-1` }) },
      { title: "Write a segment", request: (v) => ({ method: "POST", path: `/trickle/${encodeURIComponent(v.channel)}/-1`, body: v.segment }) },
      { title: "Read the newest again", request: (v) => ({ path: `/trickle/${encodeURIComponent(v.channel)}/-2` }) },
    ],
  },
  eventhorizon: {
    about: "Apps are told by a pusher, which calls them; a page cannot be called, so it listens to what moves and reads.",
    fields: { stream: "/accounts", subscription: "/_sub/console", line: "debit 5" },
    steps: [
      ...["subscription", "stream"].map((which) => ({ title: `Make the ${which}`, request: (v) => ({ method: "POST", path: "/writer/create_stream", body: JSON.stringify({ Name: v[which] }) }) })),
      { title: "Subscribe", request: (v) => ({ method: "POST", path: "/writer/subscribe", body: JSON.stringify({ Stream: v.stream, SubscriptionId: v.subscription }) }) },
      { title: "Hear what moves", how: "lines", request: (v) => ({ path: "/reader/notify", query: { subscription: v.subscription } }) },
      { title: "Append a line", request: (v) => ({ method: "POST", path: "/writer/append", body: JSON.stringify({ Stream: v.stream, Lines: [v.line] }) }) },
      { title: "Read from the beginning", request: (v) => ({ method: "POST", path: "/reader/read", body: JSON.stringify({ Cursor: `${v.stream}:0:0:?` }) }) },
    ],
  },
};

export async function mount(root, { path, signal }) {
  const door = DOORS.find((one) => one.id === path[0]) ?? DOORS[0];
  root.append(h("div", { class: "head" }, h("h1", {}, "Try it")),
    h("nav", { class: "tabs", "aria-label": "Doors" }, DOORS.map((one) => h("a", { href: `#/try/${one.id}`, "aria-current": one === door ? "true" : null }, one.title))),
    h("p", { class: "quiet" }, door.about));
  if (!(await isOpen(door))) {
    root.append(notice("empty", "This door is closed on this server", h("p", {}, "The setting ", h("code", {}, "server.doors"), " names the doors that are open; ", h("code", {}, "all"), " opens every one.")));
    return;
  }
  const play = PLAYS[door.id];
  const v = { ...play.fields };
  const came = transcript();
  const steps = play.steps.map((step, at) => stepCard(step, at + 1, v, came, () => steps.forEach((one) => one.show()), signal));
  const fields = Object.keys(play.fields).map((id) => h("div", { class: "field" }, h("label", { for: `f-${id}` }, id),
    h("input", { id: `f-${id}`, value: v[id], oninput: (event) => { v[id] = event.target.value; steps.forEach((one) => one.show()); } })));
  root.append(play.about ? h("p", {}, play.about) : "", fields.length ? h("div", { class: "card fields" }, fields) : "",
    h("div", { class: "split" }, h("div", { class: "steps" }, steps.map((one) => one.element)), came.element));
}

/** One request: shown as it goes out, with buttons to run and to copy it. */
function stepCard(step, number, v, came, refresh, signal) {
  let running = null;
  const shown = h("pre", { class: "text", tabindex: 0, role: "group", "aria-label": `Request ${number}` });
  const run = h("button", { type: "button", class: "primary", onclick: () => (running ? running.abort() : start()) });
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
    tell(`${typeof step.how === "function" ? "WebSocket" : request.method ?? "GET"} ${cut(address(request.path, request.query).replace(/(access_token|sessionKey)=[^&]+/g, "$1=…"), 90)}`, "sent");
    try {
      await runners(step)(request, { signal: ended, tell, v, step, refresh });
      if (step.how) tell("ended", "quiet");
    } catch (error) {
      if (ended.aborted) tell("stopped", "quiet");
      else tell([error.code, error.message, error.remedy].filter(Boolean).join(" · "), "bad");
    }
    running = null;
    refresh();
  };
  const copied = () => written(step, step.request(v), false);
  show();
  return { show, element: h("section", { class: "card step", "aria-label": step.title },
    h("div", { class: "row" }, h("h2", {}, `${number}. ${step.title}`), copyButton(copied, typeof step.how === "function" ? "Copy" : "Copy as curl"), run),
    step.about ? h("p", { class: "quiet" }, step.about) : null, shown) };
}

// ── how steps run ────────────────────────────────────────────────────────────────────────────────

const runners = (step) => (typeof step.how === "function" ? step.how : { lines: followLines, events: followEvents }[step.how] ?? askOnce);

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
  const hear = (event) => tell(`${event.lastEventId ? `id ${event.lastEventId} ` : ""}${event.type}: ${event.data}`);
  for (const type of ["message", "open", "gap", "reset", "replaced", "expired"]) source.addEventListener(type, (event) => (event.data === undefined ? tell("the wire is open") : hear(event)));
  return new Promise((resolve, reject) => {
    const end = (settle) => { source.close(); settle(); };
    source.addEventListener("replaced", () => end(resolve));
    source.addEventListener("error", () => { if (source.readyState === EventSource.CLOSED) end(() => reject(new Error("The server refused the wire."))); else tell("broken; the browser comes back by itself", "quiet"); });
    signal.addEventListener("abort", () => end(() => reject(new DOMException("ended", "AbortError"))));
  });
}

/** A WebSocket until it is closed; *hear(text, send)* gets what comes. */
async function followSocket(request, { signal, tell }, hear, first, protocols) {
  let opened;
  const send = (text) => { tell(text, "sent"); opened.send(text); };
  opened = await socket(address(request.path, request.query), signal, (text) => { tell(text); hear(text, send); }, protocols);
  tell("the WebSocket is open");
  if (first) send(first);
  await new Promise((resolve) => { opened.addEventListener("close", resolve); });
}

function listenToPacks(request, how) {
  return followSocket(request, how, (text, send) => { const ids = Object.keys(JSON.parse(text)).filter((id) => id !== "0"); if (ids.length) send(ids.join(",")); });
}

function beUserAgent(request, how) {
  const hear = (text, send) => {
    const said = JSON.parse(text);
    if (said.messageType === "hello") send(JSON.stringify({ messageType: "register", channelID: crypto.randomUUID() }));
    if (said.messageType === "register") { how.v.endpoint = new URL(said.pushEndpoint).pathname; how.refresh(); }
    if (said.messageType === "notification") send(JSON.stringify({ messageType: "ack", updates: [{ channelID: said.channelID, version: said.version, code: 100 }] }));
  };
  return followSocket(request, how, hear, JSON.stringify({ messageType: "hello", use_webpush: true }), ["push-notification"]);
}

// ── how requests are written ─────────────────────────────────────────────────────────────────────

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** The request as a command, or for a WebSocket as a line of JavaScript. Masked, it shows no token. */
function written(step, { method = "GET", path, query, headers = {}, body, bearer }, masked) {
  const url = `${location.origin}${masked ? address(path, query).replace(/(access_token|sessionKey)=[^&]+/g, "$1=…") : address(path, query)}`;
  if (typeof step.how === "function") return `new WebSocket(${JSON.stringify(url.replace(/^http/, "ws"))}${path === "/" ? ', ["push-notification"]' : ""})`;
  const given = bearer ?? token.get();
  const lines = [`curl ${step.how ? "-N " : ""}${method === "GET" ? "" : `-X ${method} `}${quoted(url)}`];
  for (const [name, value] of Object.entries({ ...(given ? { Authorization: `Bearer ${masked ? "…" : given}` } : {}), ...headers })) lines.push(`-H ${quoted(`${name}: ${value}`)}`);
  if (body !== undefined) lines.push(`--data-binary ${quoted(body)}`);
  return lines.join(" \\\n  ");
}

/** What went out and came in, in order; it follows the end unless somebody reads in it. */
function transcript() {
  const list = h("div", { class: "rows", role: "log", tabindex: 0, "aria-label": "What came" });
  const empty = notice("loading", "Run a step: what goes out and what comes is shown here.");
  const add = (number, kind, text) => {
    empty.remove();
    list.append(h("div", { class: `said ${kind}` }, h("span", { class: "quiet" }, `${timeOfDay(Date.now())} ${number}. ${{ sent: "→", came: "←" }[kind] ?? "·"}`), h("span", { class: "mono" }, text.slice(0, 4000))));
    while (list.children.length > 300) list.firstChild.remove();
    if (!isRead(list)) list.scrollTop = list.scrollHeight;
  };
  return { add, element: h("section", { class: "card detail came", "aria-label": "Transcript" }, h("h2", {}, "What came"), empty, list) };
}
