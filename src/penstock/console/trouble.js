// Trouble: what is not delivered, by reason; and trying it again. Each action is an entry of /_actions.

import { api, count, cut, h, moment, name, newestOf, notice, problem, repeat, say, table } from "./kit.js";
import { careful, choice, FAILED, field, fitting, MEANING, pager, stateOf } from "./states.js";

const PAGE = 50;

export async function mount(root, { query, signal }) {
  const wanted = { state: query.get("state") ?? "", reason: null, door: "", search: query.get("search") ?? "",
    from: 0 };
  const [told, said, place] = [h("p", { class: "quiet", role: "status" }), h("div", { role: "status" }),
    h("div", { class: "view" })];
  const redrive = async (body) => {
    const done = await api("POST", "/v1/trouble/redrive", { body });
    const why = Object.entries(done.impossible);
    said.replaceChildren(h("div", { class: "card" },
      h("p", {}, stateOf(done.redriven ? "acked" : "expired", `${count(done.redriven)} tried again`),
        h("span", { class: "quiet" }, ` · entry ${done.action} of `),
        h("a", { href: "#/streams/%2F_actions" }, "/_actions"), done.left
        ? ` · ${count(done.left)} left: try again for those` : ""),
      why.length ? h("ul", {}, why.map(([reason, number]) => h("li", {}, `${count(number)} not: ${reason}`)))
        : null));
    say(`${done.redriven} tried again.`);
    await look({});
  };
  const failed = (error) => { if (error.name !== "AbortError") said.replaceChildren(problem(error)); };
  const again = (title, question, body) => careful(title, question, () => redrive(body), failed);

  const groups = table({
    label: "Groups", open: (group) => look({ state: group.state, reason: group.reason, door: group.door }),
    columns: fitting([
      { title: "State", cell: (one) => h("span", { title: MEANING[one.state] ?? "" }, stateOf(one.state)) },
      { title: "Reason", class: "grow",
        cell: (one) => h("span", { title: one.reason },
        cut(one.reason || "no reason given", innerWidth < 800 ? 16 : 64)) },
      { title: "Door", cell: (one) => one.door },
      { title: "Deliveries", class: "num", cell: (one) => count(one.count) },
      { title: "Recipients", wide: true, class: "num", cell: (one) => count(one.recipients) },
      { title: "First", wide: true, cell: (one) => moment(one.since_ms) },
      { title: "Last", wide: true, cell: (one) => moment(one.ms) },
    ]),
  });
  const list = table({
    label: "Deliveries",
    columns: fitting([
      { title: "What", cell: (one) =>
        h("a", { href: `#/way/${encodeURIComponent(one.message || one.first)}` }, one.message ? cut(one.message, 20)
        : one.first === one.last ? `#${one.first}` : `#${one.first}–${one.last}`) },
      { title: "Recipient", cell: (one) => name(one.recipient, { most: innerWidth < 800 ? 12 : 28 }) },
      { title: "Stream", wide: true, class: "grow", cell: (one) => name(one.stream, { most: 28 }) },
      { title: "State", cell: (one) => stateOf(one.state) },
      { title: "Reason", wide: true, cell: (one) => h("span", { title: one.reason }, cut(one.reason, 36)) },
      { title: "Tries", wide: true, class: "num", cell: (one) => count(one.tries) },
      { title: "Last", wide: true, cell: (one) => moment(one.ms) },
      { title: "", cell: (one) => again("Redrive", "Try it again",
        { state: one.state, recipient: one.recipient, door: one.door, ...(one.first ? { entry: one.first } : {}) }) },
    ]),
  });
  const pages = pager(PAGE, (begin) => look({ from: begin }));
  const newest = newestOf(signal, (error) => place.replaceChildren(problem(error)));
  const look = async (change) => {
    if (change) Object.assign(wanted, "from" in change ? {} : { from: 0 }, change);
    const { reason, ...rest } = wanted;
    const query = { ...rest, limit: PAGE, ...(reason ? { reason } : {}) };
    await newest(() => api("GET", "/v1/trouble", { query, signal }), (page) => put(page, Boolean(change)));
  };
  const put = (page, now) => {
    told.replaceChildren(`${count(page.found)} in trouble at `, moment(page.ms), ", of what was recorded since ",
      moment(page.since_ms), page.forgotten ? `; ${count(page.forgotten)} older ones are forgotten` : "");
    if (!page.found) {
      place.replaceChildren(wanted.state || wanted.reason || wanted.door || wanted.search
        ? notice("empty", "Nothing like that is in trouble",
          h("button", { type: "button", onclick: clear }, "Show everything"))
        : notice("empty", "Nothing is in trouble",
          "An app that refuses pushes, a push service that takes nothing, messages whose time ran out: by reason.",
          "What goes well after all leaves the list by itself."));
      return;
    }
    groups.show(page.groups, { now });
    list.show(page.troubles, { now });
    pages.show(wanted.from, page.found);
    if (list.element.parentNode?.parentNode !== place) place.replaceChildren(...parts);
    chosen.replaceChildren(...(wanted.reason
      ? [h("span", {}, "Only ", h("strong", {}, cut(wanted.reason, 60)), " over ", wanted.door),
        h("button", { type: "button", onclick: clear }, "Show everything")] : []));
    if (now || !all.contains(document.activeElement)) {
      all.replaceChildren(again(`Redrive all ${count(page.found)}`, `Try ${count(page.found)} again`, body()));
    }
  };
  const body = () => {
    const { state, reason, door, search } = wanted;
    return { state, door, search, ...(reason ? { reason } : {}), all: true };
  };
  const clear = () => { states.value = search.value = ""; look({ state: "", reason: null, door: "", search: "" }); };
  const [chosen, all] = [h("div", { class: "row" }), h("span", {})];
  const parts = [h("section", { class: "card list", "aria-label": "By reason" },
    h("div", { class: "head" }, h("h2", {}, "By reason"), all), groups.element),
    h("section", { class: "card list", "aria-label": "One by one" },
      h("div", { class: "head" }, h("h2", {}, "One by one, the newest first"), chosen), list.element, pages.element)];
  const search = h("input", { id: "search", type: "search", value: wanted.search,
    placeholder: "a recipient, a stream, a reason", oninput: () => look({ search: search.value.trim() }) });
  const states = choice("state", [["", "every state"], ...FAILED], wanted.state,
    (state) => look({ state, reason: null, door: "" }));
  root.append(h("div", { class: "head" }, h("h1", {}, "Trouble"), told),
    h("div", { class: "fields" }, field("Search", search), field("State", states)), said, place);
  await repeat(5000, signal, () => (newest.waits() ? null : look()));
}
