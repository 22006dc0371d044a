// What states are called and how they look, in one place: a colour and a shape each (`kit.state`).

import { count, h, state } from "./kit.js";

const LOOKS = {
  ok: ["acked", "live", "connected", "pushing", "sending", "open", "pass"],
  wait: ["sent", "waiting", "stored", "accepted", "moved", "starting", "running", "begun", "pending"],
  warn: ["retried", "behind", "paused", "failing", "expired"],
  bad: ["dead", "dropped", "lost", "gone", "fail", "missing", "double"],
};

/** The look of a state: ok, wait, warn, bad; off for what is none of them. */
export const lookOf = (word) =>
  Object.keys(LOOKS).find((look) => LOOKS[look].includes(word)) ?? (word.startsWith("unknown") ? "warn" : "off");

/** A state by its word. */
export const stateOf = (word, text = word) => state(lookOf(word), text);

/** What each state of a delivery means, for those who hover. */
export const MEANING = {
  acked: "The recipient confirmed it.", sent: "It was written to the recipient's wire, or taken by its push service.",
  stored: "It waits in the recipient's mailbox.", accepted: "The server has promised to deliver it.",
    moved: "It waits under another month.",
  waiting: "The recipient is connected and has not come to it yet.", retried: "An attempt failed; another follows.",
  dropped: "It was given up; the reason says why.", dead: "The recipient said that it is gone for good.",
  expired: "Its time ran out before it was confirmed.", lost: "It was accepted, and storing it failed.",
};

/** States of a delivery that did not go well, or not yet; and those after which nothing more happens to it. */
export const FAILED = ["dead", "dropped", "expired", "lost", "retried"];
export const FINAL = ["acked", "dead", "dropped", "expired", "lost", "moved"];

/** Columns of a table without those marked `wide` where there is little room: what is opened has them all. */
export const fitting = (columns) => columns.filter((one) => !(one.wide && innerWidth < 800));

/** A field with its label. */
export const field = (title, control) =>
  h("div", { class: "field" }, h("label", { for: control.id }, title), control);

/** A list to choose one from; options are texts or [value, text]. */
export const choice = (id, options, chosen, onchange) => {
  const element = h("select", { id, onchange: () => onchange(element.value) },
    options.map((one) => [one].flat()).map(([value, text = value]) =>
      h("option", { value, selected: value === chosen }, text)));
  return element;
};

/** A button that asks once more before it does something; *work* may fail, which *failed* hears. */
export function careful(title, question, work, failed) {
  const button = h("button", { type: "button", onclick: () => { place.replaceChildren(really); no.focus(); } }, title);
  const yes = h("button", { type: "button", class: "primary", onclick: async () => {
    yes.disabled = true;
    try {
      await work();
    } catch (error) {
      failed(error);
    }
    yes.disabled = false;
    place.replaceChildren(button);
  } }, question);
  const back = () => { place.replaceChildren(button); button.focus(); };
  // It gets the focus, so that a list which is looked at again sees that somebody is there; yes would hear a held Enter.
  const no = h("button", { type: "button", onclick: back }, "Cancel");
  const really = h("span", { class: "row" }, yes, no);
  const place = h("span", { class: "careful" }, button);
  return place;
}

/** Buttons for pages of *size*: `show(begin, found)` says where we are, `go(begin)` is called for another. */
export function pager(size, go) {
  const told = h("span", { class: "quiet", role: "status" });
  const button = (text, step) => h("button", { type: "button", onclick: () => go(begin + step * size) }, text);
  const [back, on] = [button("Previous", -1), button("Next", 1)];
  let begin = 0;
  const show = (at, found) => {
    begin = at;
    told.textContent = found ? `${count(at + 1)}–${count(Math.min(found, at + size))} of ${count(found)}` : "none";
    back.disabled = at === 0;
    on.disabled = at + size >= found;
  };
  return { element: h("div", { class: "row pager" }, told, back, on), show };
}
