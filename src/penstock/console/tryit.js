import { h, notice } from "./kit.js";

export function mount(root) {
  root.append(h("h1", {}, "Try it"), notice("empty", "Nothing here yet"));
}
