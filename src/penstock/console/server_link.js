// The last fifteen minutes of the node, one stream for all views; it is also the link: when the server is asked again.

import { api, ask, eventsOf, pause } from "./kit.js";

const KEPT = 900;

/** Seconds as `/v1/stats` has them, oldest first. */
export const seconds = [];
export const link = new EventTarget(); // "second" after each new one, "state" when `link.state` changes
link.state = "connecting"; // then "live" or "offline"

function add(found) {
  for (const one of found) if (!seconds.length || one.ms > seconds.at(-1).ms) seconds.push(one);
  seconds.splice(0, Math.max(0, seconds.length - KEPT));
  link.dispatchEvent(new Event("second"));
}

function become(state) {
  if (link.state !== state) {
    link.state = state;
    link.dispatchEvent(new Event("state"));
  }
}

/** Call *listener* now, if there is something, and with each second until *signal* says stop. */
export function follow(listener, signal) {
  link.addEventListener("second", listener, { signal });
  if (seconds.length) listener();
}

/** Follow the server until *signal* says stop. A hidden tab lets its connection go: browsers have six for a server. */
export async function run(signal) {
  for (let failures = 0; !signal.aborted;) {
    const hidden = new AbortController();
    const hide = () => { if (document.hidden) hidden.abort(); };
    document.addEventListener("visibilitychange", hide);
    try {
      if (!document.hidden) {
        const both = AbortSignal.any([signal, hidden.signal]);
        add((await api("GET", "/v1/stats", { query: { since: seconds.at(-1)?.ms }, signal: both })).seconds);
        for await (const event of eventsOf(await ask("GET", "/v1/stats/live", { signal: both }))) {
          failures = 0;
          become("live");
          add([JSON.parse(event.data)]);
        }
      }
    } catch (error) {
      if (error.name !== "AbortError") failures += 1;
      if (error.status === 403) dispatchEvent(new CustomEvent("token-refused")); // known, and not the admin's
    } finally {
      document.removeEventListener("visibilitychange", hide);
    }
    if (!document.hidden && !signal.aborted) become("offline");
    await pause(document.hidden ? 200 : Math.min(5000, 500 * 2 ** failures), signal).catch(() => {});
  }
}

// ── what views make of seconds ───────────────────────────────────────────────────────────────────

export const sum = (table) => Object.values(table ?? {}).reduce((all, one) => all + (one ?? 0), 0);

/** How much a second of *value(second)* there was in the last *count* steps. */
export function mean(value, count = 5) {
  const last = seconds.slice(-count);
  const span = last.reduce((all, one) => all + one.span_ms, 0);
  return span ? (1000 * last.reduce((all, one) => all + value(one), 0)) / span : 0;
}

/** The newest number that *value(second)* gives in the last *count* steps, or null. */
export const newest = (value, count = 30) =>
  seconds.slice(-count).map(value).findLast((one) => one !== null && one !== undefined) ?? null;
