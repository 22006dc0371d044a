// Streams: a list to search and sort; one of them live, back through its history, and to publish into.

import { entryView, preview } from "./entry.js";
import {
  api, ask, count, cut, fill, h, isRead, linesOf, many, moment, name, newestOf, notice, problem, rate, repeat, say,
  state, table, timeOfDay, walk,
} from "./kit.js";
import { field } from "./states.js";

const SHOWN = 200;
const KEPT = 500;
const PAGE = 50;

const link = (stream) => `#/streams/${encodeURIComponent(stream)}`;

export async function mount(root, { path, query, signal }) {
  await (path.length ? mountStream(root, path[0], signal) : mountList(root, query, signal));
}

// ── the list ─────────────────────────────────────────────────────────────────────────────────────

async function mountList(root, query, signal) {
  let sort = "traffic";
  const found = h("p", { class: "quiet found" }); // changes every two seconds: nothing to read out each time
  const place = h("div", { class: "card" });
  const more = h("button", { type: "button", hidden: true, onclick: () => look({ further: true }) }, "More");
  const failed = (error) => { if (!streams.length) place.replaceChildren(problem(error)); };
  const newest = newestOf(signal, failed);
  const search = h("input", {
    id: "search", type: "search", value: query.get("search") ?? "", placeholder: "a part of the name",
    oninput: () => look({ now: true }),
  });
  const makeList = () => table({
    label: "Streams", sorted: sort,
    onsort: (by) => { sort = by; list = makeList(); look({ now: true }); },
    open: (one) => { location.hash = link(one.stream); },
    columns: [
      { title: "Stream", sort: "name", class: "grow", cell: linked },
      { title: "Events/s", sort: "traffic", class: "num", cell: (one) => (one.rate ? rate(one.rate) : "–") },
      { title: "Events", class: "num", cell: (one) => count(one.next_index) },
      { title: "Last", class: "roomy", cell: (one) => moment(one.last_time) },
      { title: "Subscriptions", class: "num roomy", cell: (one) => count(one.subscribers.length) },
    ],
  });
  let list = makeList();
  let streams = [];
  let after = null;
  const look = async ({ now = false, further = false } = {}) => {
    const query = { search: search.value.trim(), sort, limit: SHOWN, after: further ? after : null };
    await newest(() => api("GET", "/v1/streams", { query, signal }), (page) => put(page, query, now, further));
  };
  const put = (page, query, now, further) => {
    streams = further ? [...streams, ...page.streams] : page.streams;
    after = page.after;
    more.hidden = after === null;
    const all = after === null && streams.length < SHOWN;
    const shown = all ? many(streams.length, "stream") : `${count(streams.length)} or more streams`;
    found.textContent = `${shown}, at ${timeOfDay(Date.now())}`;
    if (streams.length) {
      list.show(streams, { now: now || further });
      if (list.element.parentNode !== place) place.replaceChildren(list.element);
    } else {
      place.replaceChildren(query.search ? notFound() : noneYet());
    }
  };
  root.append(h("div", { class: "head" }, h("h1", {}, "Streams"), found),
    field("Search", search), place, h("div", {}, more));
  await repeat(2000, signal, () => (streams.length <= SHOWN && !newest.waits() ? look() : null));
}

const linked = ({ stream }) => h("a", { href: link(stream), tabindex: -1 },
  h("span", { title: stream }, cut(stream, innerWidth < 800 ? 28 : 72)));

const notFound = () => notice("empty", "No stream has that in its name",
  "Names look like /orders/eu. The search is for a part of the name, in any case.");

const noneYet = () => notice("empty", "There is no stream yet",
  "A stream is made by the first event that is published into it.", h("a", { href: "#/try" }, "Publish one"));

// ── one stream ───────────────────────────────────────────────────────────────────────────────────

const headOf = async (stream, signal) =>
  (await api("GET", "/v1/streams", { query: { pattern: stream, limit: 1 }, signal })).streams[0];

async function mountStream(root, stream, signal) {
  const facts = h("p", { class: "quiet" });
  const detail = h("section", { class: "card detail", "aria-label": "Entry" },
    notice("loading", "Pick an entry to see it in full."));
  const open = (entry, row) => {
    row.closest(".rows").querySelectorAll("[aria-current]").forEach((one) => one.removeAttribute("aria-current"));
    row.setAttribute("aria-current", "true");
    detail.replaceChildren(entryView(entry));
    if (innerWidth < 800) detail.scrollIntoView({ block: "start" });
  };
  const views = { live: liveTail(stream, open, signal), history: history(stream, open, signal) };
  const choose = (id) => {
    for (const [one, view] of Object.entries(views)) {
      view.element.hidden = one !== id;
      view.tab.setAttribute("aria-pressed", String(one === id));
    }
    if (id === "history") views.history.begin();
  };
  for (const [id, title] of [["live", "Live"], ["history", "History"]]) {
    views[id].tab = h("button", { type: "button", onclick: () => choose(id) }, title);
  }
  root.append(
    h("p", {}, h("a", { href: "#/streams" }, "Streams")),
    h("div", { class: "head" }, h("h1", {}, name(stream, { most: 80, copies: true })),
      h("div", { class: "row" }, views.live.tab, views.history.tab)),
    facts, publishForm(stream, signal),
    h("div", { class: "split" }, h("div", { class: "card" }, views.live.element, views.history.element), detail));
  choose("live");
  await repeat(2000, signal, async () => {
    const head = await headOf(stream, signal);
    facts.replaceChildren(...(head ? [`${many(head.next_index, "event")} · ${rate(head.rate)} lately · last at `,
      moment(head.last_time), ` · ${many(head.subscribers.length, "subscription")}`]
      : ["There is no such stream yet: the first event that is published makes it."]));
  }, (error) => facts.replaceChildren(state("bad", error.message)));
}

/** Entries as rows that open; `put` replaces them. */
function rows(label, open) {
  const list = h("div", { class: "rows", role: "list", "aria-label": label });
  const steps = walk(list);
  const row = (entry) => {
    const button = h("button",
      { type: "button", class: "plain line", "data-row": "", tabindex: -1, onclick: () => open(entry, button) },
      h("span", { class: "quiet" }, moment(entry.time)), h("span", { class: "quiet" }, `#${entry.id}`),
      entry.type ? h("strong", {}, cut(entry.type, 24)) : null,
      h("span", { class: "mono" }, preview(entry).slice(0, 300)));
    return h("div", { role: "listitem" }, button);
  };
  const put = (entries) => { list.replaceChildren(...entries.map(row)); steps.settle(); };
  return { list, row, settle: steps.settle, put };
}

/** What comes, newest first. It holds still while somebody reads in it, and on Pause. */
function liveTail(stream, open, signal) {
  const { list, row, settle } = rows("Entries as they come", open);
  const told = h("span", { class: "quiet" });
  const paused = h("button", { type: "button", "aria-pressed": "false", onclick: () => { flip(); } }, "Pause");
  const filter = h("input", {
    type: "search", "aria-label": "Show entries with this text", placeholder: "filter: text in body or type",
    oninput: () => show(true),
  });
  const empty = notice("empty", "Nothing has come yet",
    "What is published into this stream from now on is shown here; what was before is under History.");
  const element = h("div", {}, h("div", { class: "row" }, paused, filter, told), list, empty);
  let kept = [];
  let waiting = [];
  let isPaused = false;
  const flip = () => {
    isPaused = !isPaused;
    paused.setAttribute("aria-pressed", String(isPaused));
    paused.textContent = isPaused ? "Go on" : "Pause";
    show();
  };
  const fits = ({ type, data = "" }) => `${type} ${data}`.toLowerCase().includes(filter.value.toLowerCase());
  const show = (anew = false) => {
    const holds = isPaused || isRead(list);
    const fresh = holds ? [] : waiting.reverse();
    if (!holds) waiting = [];
    kept = [...fresh, ...kept].slice(0, KEPT);
    if (anew) list.replaceChildren(...kept.filter(fits).map(row));
    else if (fresh.length) list.prepend(...fresh.filter(fits).map(row));
    while (list.children.length > KEPT) list.lastChild.remove();
    settle();
    empty.hidden = kept.length + waiting.length > 0;
    const why = isPaused ? "paused" : "held while you read";
    told.textContent = waiting.length ? `${count(waiting.length)} new, ${why}` : `${count(kept.length)} shown`;
  };
  let after;
  repeat(1000, signal, async () => {
    const tail = await ask("GET", "/v1/tail", { query: { streams: stream, after }, signal });
    for await (const line of linesOf(tail)) {
      const entry = line && JSON.parse(line);
      if (!entry || entry.gap) continue;
      after = entry.id;
      waiting.push(entry);
      if (waiting.length > KEPT) waiting.shift();
    }
  }, (error) => told.replaceChildren(state("bad", error.message)));
  repeat(250, signal, () => { if (waiting.length && !element.hidden) show(); });
  return { element };
}

/** Pages of what was published, hot and cold alike, from any time on. */
function history(stream, open, signal) {
  const { list, put } = rows("Entries of the past", open);
  const told = h("p", { class: "quiet", role: "status" });
  const when = h("input", {
    type: "datetime-local", step: 1, required: true, "aria-label": "Begin at this time (of this browser's clock)",
  });
  const trouble = h("div");
  let page = [];
  const newest = newestOf(signal, (error) => {
    told.textContent = "";
    trouble.replaceChildren(problem(error));
  });
  const read = async (makeQuery) => {
    trouble.replaceChildren();
    told.textContent = "Reading …";
    await newest(async () => {
      const query = await makeQuery();
      let found = await api("GET", "/v1/read", { query, signal });
      while (!found.entries.length && found.more) { // a page looks at so many entries, and may find none of the stream
        found = await api("GET", "/v1/read", { query: { ...query, since: null, after: found.upto }, signal });
      }
      return found.entries;
    }, (entries) => {
      page = entries;
      put(page.toReversed());
      told.textContent = page.length
        ? `${many(page.length, "event")}, from index ${count(page[0].index)} to ${count(page.at(-1).index)}`
        : "No event here.";
    });
  };
  const at = (index) => ({ stream, from: Math.max(0, index), limit: PAGE });
  const since = (time) => ({ streams: stream, since: time, limit: PAGE });
  const steps = {
    Oldest: () => since("1970-01-01T00:00:00Z"),
    Older: () => at((page[0]?.index ?? PAGE) - PAGE),
    Newer: () => at((page.at(-1)?.index ?? -1) + 1),
    Newest: async () => at(((await headOf(stream, signal))?.next_index ?? 0) - PAGE),
  };
  const go = (event) => {
    event.preventDefault();
    read(() => since(new Date(when.value).toISOString()));
  };
  const buttons = Object.entries(steps).map(([title, step]) =>
    h("button", { type: "button", onclick: () => read(step) }, title));
  const element = h("div", {},
    h("div", { class: "row" }, buttons),
    h("form", { class: "row", onsubmit: go }, when, h("button", {}, "Go to this time")), told, trouble, list);
  let begun = false;
  return { element, begin: () => { if (!begun) read(steps.Newest); begun = true; } };
}

function publishForm(stream, signal) {
  const type = h("input", { id: "type", value: "test" });
  const body = h("textarea", { id: "body", rows: 3 }, '{"hello": "from the console"}');
  const told = h("div", { role: "status" });
  const publish = async (event) => {
    event.preventDefault();
    await fill(told, async () => {
      const headers = type.value ? { "Event-Type": type.value } : {};
      const { id, index } = await api("POST", "/v1/publish", { query: { stream }, body: body.value, headers, signal });
      say("Published.");
      return state("ok", `published as id ${id}, index ${index}`);
    }, signal);
  };
  return h("details", { class: "card" }, h("summary", {}, "Publish a test event"),
    h("form", { onsubmit: publish, class: "form" }, field("Type", type), field("Body", body),
      h("div", { class: "row" }, h("button", { class: "primary" }, "Publish"), told)));
}
