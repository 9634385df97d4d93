// Light or dark theme: that of the system, or the one the user chose. theme-early.js applies it before the first paint.

import { h } from "./dom.js";
import { recall, remember } from "./local.js";

const KEPT = "welldone.theme";
const MODES = /** @type {const} */ (["system", "light", "dark"]);
const SIGNS = { system: "◐", light: "☀", dark: "☾" };

/** @typedef {typeof MODES[number]} Mode */

/** The button that changes the theme. */
export function makeThemeButton() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let mode = kept();
  const button = h("button", { class: "quiet theme" });
  const show = () => {
    const isDark = mode === "dark" || (mode === "system" && system.matches);
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    button.textContent = SIGNS[mode];
    button.title = `Theme: ${mode}`;
    button.setAttribute("aria-label", button.title);
  };
  button.addEventListener("click", () => {
    mode = MODES[(MODES.indexOf(mode) + 1) % MODES.length];
    remember(KEPT, mode);
    show();
  });
  system.addEventListener("change", show);
  show();
  return button;
}

/** @returns {Mode} */
function kept() {
  const value = recall(KEPT);
  return MODES.find((mode) => mode === value) ?? "system";
}
