// Sample traffic: this page publishes and listens through every open door for a minute, by the doors' own protocols.

import { api, ask, count, eventsOf, h, linesOf, pause, state } from "./kit.js";

const SECONDS = 60;
const every = async (ms, signal, work) => { for (;;) { await work(); await pause(ms, signal); } };
const oneOf = (...things) => things[Math.floor(Math.random() * things.length)];
const order = () => ({ item: oneOf("boots", "hat", "rope", "tent"), price: Math.ceil(Math.random() * 9000) / 100 });

/** A WebSocket of this server that ends with *signal*; *heard* gets each message as text. */
export function socket(path, signal, heard, protocols = []) {
  const opened = new WebSocket(`${location.origin.replace(/^http/, "ws")}${path}`, protocols);
  signal.addEventListener("abort", () => opened.close());
  opened.addEventListener("message", (event) => heard(event.data));
  return new Promise((resolve, reject) => {
    opened.addEventListener("open", () => resolve(opened));
    opened.addEventListener("error", () => reject(new Error("The WebSocket could not be opened.")));
  });
}

/** How each door is driven: listens first, then sends until the signal says stop. */
const DRIVERS = {
  async v1({ signal, sent, came }) {
    const tail = await ask("GET", "/v1/tail", { query: { streams: "/sample/>" }, signal });
    const listen = async () => { for await (const line of linesOf(tail)) if (line) came(); };
    const send = () => every(200, signal, async () => {
      const query = { stream: `/sample/orders/${oneOf("eu", "eu", "us")}` };
      await api("POST", "/v1/publish", { query, body: order(), headers: { "Event-Type": "order" }, signal });
      sent();
    });
    await Promise.all([listen(), send()]);
  },
  async sps({ signal, sent, came }) {
    const { token } = await api("POST", "/v1/tokens", { body: { uid: 4242, ttl: 2 * SECONDS }, signal });
    const query = { uid: 4242, hid: "console", tid: "sample", format: "sse" };
    const wire = await ask("GET", "/subscribe", { query, bearer: token, signal });
    const listen = async () => { for await (const event of eventsOf(wire)) if (event.id) came(); };
    const send = () => every(500, signal, async () => {
      await api("POST", oneOf("/notify_to_user?uid=4242", "/notify_to_room?tid=sample"), { body: order(), signal });
      sent();
    });
    await Promise.all([listen(), send()]);
  },
  async msgstream({ signal, sent, came }) {
    const actorId = "sample-player";
    const { sessionKey } = await api("POST", "/v1/sessions", { body: { actorId, ttl: 2 * SECONDS }, signal });
    const opened = await socket(`/msgstream?sessionKey=${encodeURIComponent(sessionKey)}`, signal, (text) => {
      const ids = Object.keys(JSON.parse(text));
      ids.forEach(() => came());
      opened.send(ids.join(","));
    });
    await every(700, signal, async () => {
      await api("POST", "/v1/emit", { body: { actors: [actorId], messages: [["shop.offer", order()]] }, signal });
      sent();
    });
  },
  async webpush({ signal, sent, came }) {
    let registered;
    const endpoint = new Promise((resolve) => { registered = resolve; });
    const say = (value) => agent.send(JSON.stringify(value));
    const agent = await socket("/", signal, (text) => {
      const { messageType, pushEndpoint, channelID, version } = JSON.parse(text);
      if (messageType === "hello") say({ messageType: "register", channelID: crypto.randomUUID() });
      if (messageType === "register") registered(pushEndpoint);
      if (messageType === "notification") {
        came();
        say({ messageType: "ack", updates: [{ channelID, version, code: 100 }] });
      }
    }, ["push-notification"]);
    say({ messageType: "hello", use_webpush: true });
    const path = new URL(await endpoint).pathname;
    await every(1500, signal, async () => {
      await ask("POST", path, { headers: { TTL: "60" }, bearer: "", signal }); // who has the endpoint needs no token
      sent();
    });
  },
  async trickle({ signal, sent, came }) {
    const channel = `/trickle/sample-${Date.now().toString(36)}`;
    await ask("POST", `${channel}?record=true`, { headers: { "Expect-Content": "text/plain" }, signal });
    const listen = async () => {
      for (let number = 0; ; number += 1) {
        await (await ask("GET", `${channel}/${number}`, { signal })).text();
        came();
      }
    };
    let number = 0;
    const send = () => every(1000, signal, async () => {
      await ask("POST", `${channel}/${number}`, { body: `segment ${number}\n`.repeat(100), signal });
      number += 1;
      sent();
    });
    await Promise.all([listen(), send()]).finally(() => ask("DELETE", channel).catch(() => {}));
  },
  // As a pusher that runs elsewhere: it reads, and reports what became of it.
  async eventhorizon({ signal, sent, came }) {
    const stream = "/sample/ledger";
    const { cursor } = await api("POST", "/v1/publish", { query: { stream }, body: "first", signal });
    let at = cursor;
    await every(1000, signal, async () => {
      const lines = { Stream: stream, Lines: ["debit", "credit"] };
      const { Offset } = await api("POST", "/writer/append", { body: lines, signal });
      sent(2);
      const { Ids } = await api("POST", "/reader/read", { body: { Cursor: at }, signal });
      const States = [["sent", ""], ["acked", ""]];
      const report = { SubscriptionId: "/_sub/sample", Stream: stream, Ids: [Ids[0], Ids.at(-1)], States };
      await api("POST", "/reader/report", { body: report, signal });
      came(Ids.length);
      at = Offset;
    });
  },
};

/** A button that starts and stops the traffic, and a panel that shows how it goes. It goes on when the view is left. */
export function sampleTraffic(doors, signal) {
  const panel = h("div", { class: "card sample" });
  const button = h("button", { type: "button", onclick: () => (running ? running.abort() : start(doors)) });
  const show = () => {
    button.textContent = running ? "Stop the sample traffic" : "Send sample traffic";
    button.className = running ? "" : "primary";
    if (running) panel.replaceChildren(running.board);
    panel.hidden = !panel.firstChild;
  };
  changed.addEventListener("change", show, { signal });
  show();
  return { button, panel };
}

const changed = new EventTarget();
let running = null;
addEventListener("token-refused", () => running?.abort());

async function start(doors) {
  const ending = new AbortController();
  const bar = h("progress", { max: SECONDS, "aria-label": "How much of the minute is over" });
  const left = h("span", { class: "quiet" });
  const rows = doors.map((door) => ({
    door, sent: 0, came: 0, numbers: h("span", { class: "mono" }), how: h("span", {}, state("wait", "starts")),
  }));
  const told = rows.map((row) => h("div", {}, h("dt", {}, row.door.title), h("dd", {}, row.how, row.numbers)));
  ending.board = h("div", {}, h("div", { class: "row" }, h("h2", {}, "Sample traffic"), bar, left),
    h("dl", { class: "doors" }, told));
  running = ending;
  changed.dispatchEvent(new Event("change"));
  const drive = async (row) => {
    const tell = () => { row.numbers.textContent = `${count(row.sent)} sent · ${count(row.came)} came`; };
    const add = (name) => (more = 1) => { row[name] += more; tell(); };
    try {
      row.how.replaceChildren(state("ok", "runs"));
      await DRIVERS[row.door.id]({ signal: ending.signal, sent: add("sent"), came: add("came") });
    } catch (error) {
      row.how.replaceChildren(ending.signal.aborted ? state("off", "done") : state("bad", error.message));
    }
  };
  const began = Date.now();
  const clock = every(500, ending.signal, async () => {
    const passed = (Date.now() - began) / 1000;
    bar.value = passed;
    left.textContent = `${Math.max(0, Math.ceil(SECONDS - passed))} s left`;
    if (passed >= SECONDS) ending.abort();
  }).catch(() => {});
  await Promise.all([clock, ...rows.map(drive)]);
  left.textContent = "over";
  running = null;
  changed.dispatchEvent(new Event("change"));
}
