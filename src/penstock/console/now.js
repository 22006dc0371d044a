import { h, notice } from "./kit.js";

export function mount(root) {
  root.append(h("h1", {}, "now"), notice("empty", "Nothing here yet"));
}
