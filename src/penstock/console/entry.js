// One entry in full: where it is, what it says, and a link to what became of it.

import { bytes, copyButton, facts, h, moment, name } from "./kit.js";

const OPEN_DEPTH = 2; // deeper values begin folded
const HEX_BYTES = 4096; // that are shown of a body which is no text

/** A link to the view of one message's way. */
export const wayLink = (id, text = "Its way to every recipient") =>
  h("a", { href: `#/way/${encodeURIComponent(id)}` }, text);

/** The bytes of an entry's body. */
export const bodyOf = (entry) => (entry.data_base64 === undefined
  ? new TextEncoder().encode(entry.data ?? "")
  : Uint8Array.from(atob(entry.data_base64), (letter) => letter.charCodeAt(0)));

/** One line that stands for the body. */
export function preview(entry) {
  if (entry.data !== undefined) return entry.data;
  if (entry.data_base64 === undefined) return `(${entry.kind ?? "no body"})`;
  return `${bytes(bodyOf(entry).length)} that are no text`;
}

/** An entry as facts and body. */
export function entryView(entry) {
  const body = bodyOf(entry);
  const known = {
    id: name(String(entry.id), { copies: true }), stream: name(entry.stream, { most: 80, copies: true }),
    index: entry.index === null ? "none" : name(String(entry.index), { copies: true }),
    cursor: name(entry.cursor, { most: 60, copies: true }),
    published: h("span", {}, moment(entry.time), h("span", { class: "quiet" }, ` ${entry.time}`)),
    type: entry.type || null, kind: entry.kind, expires: entry.expires ? moment(entry.expires) : null,
    attributes: entry.attributes ? tree(entry.attributes, 1) : null, size: bytes(body.length),
  };
  return h("article", { class: "entry" },
    facts(known), h("p", {}, wayLink(entry.id)),
    h("h3", {}, "Body", copyButton(entry.data ?? entry.data_base64 ?? "", "Copy the body")), bodyView(entry, body));
}

function bodyView(entry, body) {
  if (entry.data_base64 !== undefined) return hex(body);
  try {
    return h("div", { class: "json mono" }, tree(parse(entry.data), 0));
  } catch {
    return h("pre", { class: "text" }, entry.data ?? "");
  }
}

/** A number as it was written: large ones do not fit JavaScript's. */
class Written {
  constructor(text) { this.text = text; }
}

const parse = (text) => JSON.parse(text, (key, value, context) =>
  (typeof value === "number" && context?.source ? new Written(context.source) : value));

/** JSON, coloured, objects and lists to fold. What is folded is built when it is opened. */
function tree(value, depth) {
  if (value instanceof Written) return h("span", { class: "number" }, value.text);
  if (value === null || typeof value !== "object") {
    return h("span", { class: typeof value === "string" ? "string" : "number" }, JSON.stringify(value));
  }
  const [first, last] = Array.isArray(value) ? "[]" : "{}";
  const names = Object.keys(value);
  if (!names.length) return h("span", {}, first + last);
  const inside = h("div", { class: "inside" });
  const fill = () => {
    if (inside.firstChild) return;
    const shown = (key) => [h("span", { class: "key-name" }, JSON.stringify(key)), ": "];
    const named = Array.isArray(value) ? () => null : shown;
    inside.append(...names.map((key) => h("div", {}, named(key), tree(value[key], depth + 1))));
  };
  const fold = h("details", { open: depth < OPEN_DEPTH, ontoggle: fill },
    h("summary", {}, first, h("span", { class: "quiet" }, ` ${names.length} ${last}`)), inside, last);
  if (depth < OPEN_DEPTH) fill();
  return fold;
}

/** Bytes in hexadecimal: place, sixteen bytes, and what of them is ASCII. */
function hex(body) {
  const lines = [];
  for (let at = 0; at < Math.min(body.length, HEX_BYTES); at += 16) {
    const some = [...body.subarray(at, at + 16)];
    const digits = some.map((one) => one.toString(16).padStart(2, "0")).join(" ");
    const letters = some.map((one) => (one > 31 && one < 127 ? String.fromCharCode(one) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${letters}`);
  }
  if (body.length > HEX_BYTES) lines.push(`… ${bytes(body.length - HEX_BYTES)} more`);
  const reached = { tabindex: 0, role: "group", "aria-label": "The body in hexadecimal" }; // so that keys can scroll it
  return h("pre", { class: "hex", ...reached }, lines.join("\n"));
}
