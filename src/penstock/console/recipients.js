// Recipients: everybody who receives, in one list; one of them with what waits for it, and what can be done about it.

import {
  api, bytes, count, cut, facts, fill, h, moment, name, newestOf, notice, problem, repeat, say, table,
} from "./kit.js";
import { careful, choice, field, fitting, pager, stateOf } from "./states.js";

const PAGE = 100;
const KINDS = { wire: "wires", tail: "tails", session: "sessions", agent: "user agents", pusher: "pushers",
  binding: "bindings", channel: "channels", consumer: "consumers" };
const QUESTIONS = { pause: "Pause it", resume: "Resume it", retry: "Try now", disconnect: "End its connection" };

const linkTo = (one) => `#/recipients/${one.kind}/${encodeURIComponent(one.name)}`;
const lagOf = (one) => (one.lag === null ? "–" : one.unit === "bytes" ? bytes(one.lag)
  : `${count(one.lag)} ${one.unit}`);

export async function mount(root, { path, query, signal }) {
  await (path.length > 1 ? mountOne(root, path[0], path.slice(1).join("/"), signal) : mountList(root, query, signal));
}

async function mountList(root, query, signal) {
  const wanted = { kind: query.get("kind") ?? "", state: query.get("state") ?? "", search: query.get("search") ?? "",
    sort: "name", from: 0 };
  const told = h("p", { class: "quiet", role: "status" });
  const list = table({
    label: "Recipients", open: (one) => { location.hash = linkTo(one); },
    columns: fitting([
      { title: "Kind", cell: (one) => one.kind },
      { title: "Name", class: "grow",
        cell: (one) => h("a", { href: linkTo(one), tabindex: -1 },
          h("span", { title: one.name }, cut(one.name, innerWidth < 800 ? 16 : 48))) },
      { title: "State", cell: (one) =>
        stateOf(one.state, one.node ? `${one.state} (${cut(one.node, 16)})` : one.state) },
      { title: "Position", wide: true, class: "num", cell: (one) => count(one.position) },
      { title: "Behind", class: "num", cell: (one) => h("span", { class: one.lag ? null : "quiet" }, lagOf(one)) },
      { title: "Since", wide: true, cell: (one) => moment(one.since_ms) },
      { title: "Last error", wide: true,
        cell: (one) => (one.error ? h("span", { title: one.error }, cut(one.error, 40))
          : h("span", { class: "quiet" }, "none")) },
    ]),
  });
  const place = h("div", {}, list.element);
  const pages = pager(PAGE, (begin) => look({ from: begin }));
  const newest = newestOf(signal, (error) => place.replaceChildren(problem(error)));
  const look = async (change) => {
    if (change) Object.assign(wanted, { from: 0 }, change);
    const query = { ...wanted, limit: PAGE };
    await newest(() => api("GET", "/v1/recipients", { query, signal }), (page) => put(page, Boolean(change)));
  };
  const put = (page, now) => {
    const whom = wanted.kind ? KINDS[wanted.kind] : "recipients";
    told.replaceChildren(`${count(page.total)}${page.complete ? "" : " or more"} ${whom} at `, moment(page.ms));
    const known = ["", ...Object.keys(page.states).sort()];
    if (!known.includes(wanted.state)) known.push(wanted.state);
    if ([...states.options].map((one) => one.value).join() !== known.join()) {
      const option = (one) => h("option", { value: one, selected: one === wanted.state }, one || "every state");
      states.replaceChildren(...known.map(option));
    }
    list.show(page.recipients, { now });
    pages.show(wanted.from, page.found);
    if (page.found) {
      // Taken out and put back it would lose the pointer, the focus and how far it was scrolled.
      if (list.element.parentNode !== place) place.replaceChildren(list.element);
      return;
    }
    place.replaceChildren(page.total
      ? notice("empty", "Nobody is found", "No recipient has that in its name, its streams or its last error.")
      : notice("empty", "Nobody receives yet",
        "A page that listens, an app that is pushed to, a browser with a push subscription:",
        "each of them is shown here as soon as it is there.", h("a", { href: "#/try" }, "Try a door")));
  };
  const search = h("input", { id: "search", type: "search", value: wanted.search,
    placeholder: "a part of the name, a stream, an error", oninput: () => look({ search: search.value.trim() }) });
  const kinds = choice("kind", [["", "every kind"], ...Object.entries(KINDS)], wanted.kind,
    (kind) => look({ kind, state: "" }));
  const states = choice("state", [["", "every state"], ...(wanted.state ? [wanted.state] : [])], wanted.state,
    (state) => look({ state }));
  const sorts = choice("sort", [["name", "kind and name"], ["lag", "furthest behind first"],
    ["since", "newest first"]], "name", (sort) => look({ sort }));
  root.append(h("div", { class: "head" }, h("h1", {}, "Recipients"), told),
    h("div", { class: "fields" }, field("Search", search), field("Kind", kinds), field("State", states),
      field("Sort by", sorts)),
    h("div", { class: "card list" }, place, pages.element));
  await repeat(5000, signal, () => (newest.waits() ? null : look()));
}

// ── one of them ──────────────────────────────────────────────────────────────────────────────────

async function mountOne(root, kind, id, signal) {
  const said = h("div", { role: "status" });
  const place = h("div", { class: "view" });
  const again = () => fill(place, () => one(), signal);
  const act = async (action) => {
    const { action: entry, recipient } = await api("POST", "/v1/recipients/act",
      { body: { kind, name: id, action } });
    said.replaceChildren(h("p", {}, stateOf("acked", `Done: ${action}. It is entry ${entry} of `),
      h("a", { href: "#/streams/%2F_actions" }, "/_actions"), "."));
    say(`Done: ${action}.`);
    if (recipient) await again();
    else place.replaceChildren(notice("empty", "It is not there any more",
      "If it comes back, it is in the list again, and goes on from its position.",
      h("a", { href: "#/recipients" }, "Recipients")));
  };
  const one = async () => {
    const { recipient, waiting } = await api("GET", "/v1/recipients/waiting",
      { query: { kind, name: id, limit: 200 }, signal });
    return [h("div", { class: "split" },
      h("section", { class: "card", "aria-label": "State" }, known(recipient),
        h("div", { class: "row actions" }, recipient.actions.length
        ? recipient.actions.map((action) =>
          careful(action[0].toUpperCase() + action.slice(1), QUESTIONS[action], () => act(action),
          (error) => said.replaceChildren(problem(error))))
        : h("p", { class: "quiet" }, "Nothing can be done about it from here.")),
      h("p", { class: "actions" }, h("a",
        { href: `#/trouble?search=${encodeURIComponent(kind === "pusher" ? recipient.streams[0] ?? id : id)}` },
        "What is in trouble for it"))),
      h("section", { class: "card list", "aria-label": "What waits for it" }, h("h2", {}, "What waits for it"),
        waits(waiting)))];
  };
  root.append(h("p", {}, h("a", { href: "#/recipients" }, "Recipients")),
    h("div", { class: "head" }, h("h1", {}, `${kind} `, name(id, { most: 60, copies: true })),
      h("button", { type: "button", onclick: again }, "Look again")), said, place);
  await again();
}

function known(one) {
  return facts({
    state: stateOf(one.state), door: one.door, node: one.node,
    streams: one.streams.length ? h("span", {},
      one.streams.slice(0, 20).map((stream) => h("div", {}, name(stream, { most: 60 })))) : null,
    position: one.position === null ? null : `id ${count(one.position)}`, "behind by": lagOf(one),
      connections: one.connections ? count(one.connections) : null,
    since: one.since_ms ? moment(one.since_ms) : null,
    "last error": one.error ? h("span", {}, one.error, " ", one.error_ms ? moment(one.error_ms) : null) : "none",
    "looked at": moment(Date.now()),
  });
}

function waits(page) {
  if (!page.items.length) return h("p", { class: "quiet" }, page.words
    || "Nothing waits: it has all that is for it.");
  const list = table({
    label: "What waits",
    columns: [
      { title: "What", cell: (one) =>
        (one.entry || one.message ? h("a", { href: `#/way/${encodeURIComponent(one.entry ?? one.message)}` },
        cut(String(one.entry ?? one.message), 24)) : one.about ? h("span", { title: one.about }, cut(one.about, 40))
        : "–") },
      { title: "Stream", class: "grow", cell: (one) => name(one.stream, { most: 32 }) },
      { title: "Size", class: "num", cell: (one) => bytes(one.bytes) },
      { title: "Since", cell: (one) => moment(one.ms) },
    ],
  });
  list.show(page.items, { now: true });
  return [list.element, h("p", { class: "quiet" },
    `${count(page.items.length)} shown, the oldest first${page.more ? "; more wait" : ""}`)];
}
