// Light or dark.
import { h } from "./dom.js";

/** The button that changes it. */
export function makeThemeButton() {
  return h("button", { type: "button", class: "quiet", "aria-label": "Theme" }, "◐");
}
