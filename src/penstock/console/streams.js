import { h, notice } from "./kit.js";

export function mount(root) {
  root.append(h("h1", {}, "streams"), notice("empty", "Nothing here yet"));
}
