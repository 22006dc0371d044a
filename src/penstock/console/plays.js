// What can be tried at each door.
//
// `fields` are shared by the steps of a door as `v`; `keep` takes more out of an answer. A step's `request(v)` is what
// goes out: {method, path, query, headers, body, bearer}. `how` names what runs it in tryit.js: nothing for one answer,
// "lines" for one that stays open, "events" for an EventSource, "packs" and "agent" for a WebSocket, "push" for the
// PushManager. A step that `needs` something can run once a step before it has got that.

const post = (path, rest) => ({ method: "POST", path, ...rest });
const json = (path, value) => post(path, { body: JSON.stringify(value) });
const channel = (v) => `/trickle/${encodeURIComponent(v.channel)}`;

export const PLAYS = {
  v1: {
    fields: { stream: "/demo", body: '{"hello": "world"}' },
    steps: [
      { title: "Follow a stream", how: "lines", request: (v) => ({ path: "/v1/tail", query: { streams: v.stream } }) },
      { title: "Publish into it", request: (v) => post("/v1/publish", { query: { stream: v.stream }, body: v.body }) },
      { title: "Read it back", request: (v) => ({ path: "/v1/read", query: { streams: v.stream, limit: 10 } }) },
    ],
  },
  sps: {
    fields: { uid: "42", room: "earth", body: '{"text": "hello"}' },
    steps: [
      { title: "A token for the device, which can only listen",
        request: (v) => json("/v1/tokens", { uid: Number(v.uid), ttl: 600 }),
        keep: (answer, v) => { v.token = answer.token; } },
      { title: "Open its wire with an EventSource", how: "events", needs: "token",
        about: "An EventSource sends no headers, so this token travels in the address; it ends after ten minutes.",
        request: (v) => {
          const query = { uid: v.uid, hid: "console", tid: v.room, format: "sse", access_token: v.token };
          return { path: "/subscribe", query, bearer: "" };
        } },
      { title: "Notify the user", request: (v) => post("/notify_to_user", { query: { uid: v.uid }, body: v.body }) },
      { title: "Notify the room", request: (v) => post("/notify_to_room", { query: { tid: v.room }, body: v.body }) },
    ],
  },
  msgstream: {
    fields: { actor: "alice", type: "shop.purchase", data: '{"item": "boots"}' },
    steps: [
      { title: "A session for the actor", request: (v) => json("/v1/sessions", { actorId: v.actor, ttl: 600 }),
        keep: (answer, v) => { v.sessionKey = answer.sessionKey; } },
      { title: "Listen with a WebSocket, and confirm what comes", how: "packs", needs: "sessionKey",
        request: (v) => ({ path: "/msgstream", query: { sessionKey: v.sessionKey }, bearer: "" }) },
      { title: "Or ask with a long poll", needs: "sessionKey",
        about: "It is answered by the next pack, or empty after a minute. It takes the WebSocket's place.",
        request: (v) => {
          const query = { transport: "longpolling", sessionKey: v.sessionKey };
          return { path: "/msgstream", query, bearer: "" };
        } },
      { title: "Emit a pack", request: (v) => {
        const message = `[${JSON.stringify(v.type)},${v.data}]`; // the data as they were typed
        return post("/v1/emit", { body: `{"actors":[${JSON.stringify(v.actor)}],"messages":[${message}]}` });
      } },
    ],
  },
  webpush: {
    about: "First this page plays the browser's part, a user agent over its WebSocket; then the browser itself does.",
    fields: { stream: "/demo/push", body: "hello" },
    steps: [
      { title: "Be a user agent: say hello, register a channel", how: "agent",
        request: () => ({ path: "/", bearer: "" }) },
      { title: "Push to the endpoint", needs: "endpoint",
        about: "Who knows the endpoint may send; without a body nothing has to be encrypted.",
        request: (v) => post(v.endpoint, { headers: { TTL: "60" }, bearer: "" }) },
      { title: "The key that pages subscribe with", request: () => ({ path: "/v1/webpush/key", bearer: "" }) },
      { title: "Subscribe this browser, and bind it to the stream", how: "push",
        about: "It asks for notifications. Chrome has its own push service; Firefox uses this one if it is told to.",
        request: (v) => ({ path: "/v1/webpush", stream: v.stream }) },
      { title: "Publish into the stream",
        request: (v) => post("/v1/publish", { query: { stream: v.stream }, body: v.body }) },
    ],
  },
  trickle: {
    fields: { channel: "demo", segment: "one segment, whole" },
    steps: [
      { title: "Make the channel", request: (v) => post(channel(v), { headers: { "Expect-Content": "text/plain" } }) },
      { title: "Read the next segment as it is written", how: "lines",
        about: "No answer begins before the segment's first byte.", request: (v) => ({ path: `${channel(v)}/-1` }) },
      { title: "Write a segment", request: (v) => post(`${channel(v)}/-1`, { body: v.segment }) },
      { title: "Read the newest again", request: (v) => ({ path: `${channel(v)}/-2` }) },
    ],
  },
  eventhorizon: {
    about: "Apps are told by a pusher, which calls them. A page cannot be called: it listens to what moves, and reads.",
    fields: { stream: "/accounts", subscription: "/_sub/console", line: "debit 5" },
    steps: [
      { title: "Make the subscription", request: (v) => json("/writer/create_stream", { Name: v.subscription }) },
      { title: "Make the stream", request: (v) => json("/writer/create_stream", { Name: v.stream }) },
      { title: "Subscribe",
        request: (v) => json("/writer/subscribe", { Stream: v.stream, SubscriptionId: v.subscription }) },
      { title: "Hear what moves", how: "lines",
        request: (v) => ({ path: "/reader/notify", query: { subscription: v.subscription } }) },
      { title: "Append a line", request: (v) => json("/writer/append", { Stream: v.stream, Lines: [v.line] }) },
      { title: "Read from the beginning", request: (v) => json("/reader/read", { Cursor: `${v.stream}:0:0:?` }) },
    ],
  },
};
