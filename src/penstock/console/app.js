// The shell: which views there are, which one the address names, and whether we may come in.

import { h, notice, problem, state, timeOfDay, token } from "./kit.js";
import { link, run, seconds } from "./server_link.js";

/** Every view: `#/<id>` shows what `module` exports as `mount(root, {path, query, signal})`. */
const VIEWS = [
  { id: "now", title: "Now", module: "./now.js" },
  { id: "streams", title: "Streams", module: "./streams.js" },
  { id: "way", title: "Way", module: "./message_way.js" },
  { id: "recipients", title: "Recipients", module: "./recipients.js" },
  { id: "trouble", title: "Trouble", module: "./trouble.js" },
  { id: "pipeline", title: "Pipeline", module: "./pipeline.js" },
  { id: "try", title: "Try it", module: "./tryit.js" },
];

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const status = document.getElementById("status");
let leaving = new AbortController();
let session = null; // ends when the token is no longer taken

/** The address after `#/`: a view, the levels after it, and a query. */
function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [id, ...levels] = path.split("/");
  const view = VIEWS.find((one) => one.id === id);
  return { view: view ?? VIEWS[0], path: view ? levels.map(decode) : [], query: new URLSearchParams(query) };
}

function decode(level) {
  try {
    return decodeURIComponent(level);
  } catch {
    return level;
  }
}

/** Show what the address names. The view before hears by its signal that it is left. */
async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  if (!token.get()) return askForToken();
  if (!session) run((session = new AbortController()).signal); // follows the server's seconds
  const { view, path, query } = place();
  document.title = `${view.title} · Penstock`;
  nav.replaceChildren(...VIEWS.map((one) => h("a",
    { href: `#/${one.id}`, "aria-current": one === view ? "page" : null }, one.title)));
  const current = nav.querySelector("[aria-current]");
  nav.scrollLeft = current.offsetLeft - nav.offsetLeft - (nav.clientWidth - current.offsetWidth) / 2;
  const root = h("div", { class: `view ${view.id}` }, notice("loading", "Loading …"));
  main.replaceChildren(root);
  try {
    const { mount } = await import(view.module);
    if (signal.aborted) return;
    root.replaceChildren();
    await mount(root, { path, query, signal });
  } catch (error) {
    if (error.name !== "AbortError" && !signal.aborted) root.replaceChildren(problem(error, show));
  }
}

function tellState() {
  const since = seconds.length ? timeOfDay(seconds.at(-1).ms) : "the start";
  const offline = ["bad", `no answer since ${since}`];
  const said = { connecting: ["wait", "connecting"], live: ["ok", "live"], offline };
  document.body.classList.toggle("stale", Boolean(session) && link.state === "offline");
  status.replaceChildren(session ? state(...said[link.state]) : "");
}

function askForToken(why = "") {
  document.title = "Token · Penstock";
  nav.replaceChildren();
  const field = h("input", {
    id: "token", type: "password", autocomplete: "off", required: true, "aria-describedby": "where",
  });
  const enter = async (event) => {
    event.preventDefault();
    const headers = { Authorization: `Bearer ${field.value.trim()}` };
    const answer = await fetch("/v1/consumers", { headers }).catch(() => null);
    if (answer?.ok) {
      token.set(field.value.trim());
      await show();
      main.focus();
    } else if (!answer) askForToken("The server does not answer. Is it running?");
    else askForToken(answer.status === 403 ? "That token is not the admin's." : "The server does not know that token.");
  };
  main.replaceChildren(h("form", { class: "card token", onsubmit: enter },
    h("h1", {}, "Penstock console"),
    h("label", { for: "token" }, "Admin token"),
    field,
    h("p", { id: "where", class: "quiet" }, "It is the file admin.token in the server's data directory; ",
      "./penstock up prints an address that has it. It is kept for this tab only."),
    why ? h("p", { class: "state bad", role: "alert" }, why) : null,
    h("button", { class: "primary" }, "Open the console")));
  field.focus();
}

/** Take the token out of the address before anything else sees it. */
function takeToken() {
  const given = /^#token=(.+)$/.exec(location.hash);
  if (!given) return;
  token.set(decode(given[1]));
  history.replaceState(null, "", "#/now");
}

addEventListener("token-refused", () => {
  if (!token.get()) return;
  token.forget();
  leaving.abort();
  session?.abort();
  session = null;
  tellState();
  askForToken("The server does not take the token of this tab for the admin's.");
});
addEventListener("hashchange", () => {
  takeToken();
  show();
});
link.addEventListener("state", tellState);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names views, not places in the page
  main.focus();
});
takeToken();
show();
