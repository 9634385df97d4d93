// Tabs with panels. Arrow keys move between tabs (WAI-ARIA tabs pattern).

import { h } from "../dom.js";

let made = 0;

/**
 * @typedef {object} Tabs
 * @property {HTMLElement} bar
 * @property {HTMLElement[]} panels
 * @property {() => string} shown
 * @property {(name: string) => void} show
 * @property {(name: string, mark: string, isWarning: boolean) => void} mark sets the badge of a tab
 */

/**
 * @param {string} label
 * @param {Record<string, HTMLElement>} contents content of each panel by name
 * @param {(name: string) => void} [onShow] called when another panel is shown
 * @returns {Tabs}
 */
export function makeTabs(label, contents, onShow = () => {}) {
  const id = `tabs-${++made}`;
  const names = Object.keys(contents);
  const marks = names.map(() => h("span", { class: "badge", "aria-hidden": "true", hidden: true }));
  const tabs = names.map((name, index) =>
    h("button", { class: "quiet mini insp-tab", role: "tab", id: `${id}-tab-${index}`,
      "aria-controls": `${id}-panel-${index}`, on: { click: () => show(name) } }, name, marks[index]),
  );
  const panels = names.map((name, index) =>
    h("div", { class: "insp-panel", role: "tabpanel", id: `${id}-panel-${index}`,
      "aria-labelledby": `${id}-tab-${index}`, hidden: true }, contents[name]),
  );
  let shown = "";

  /** @param {string} name */
  const show = (name) => {
    shown = name;
    names.forEach((other, index) => {
      const isShown = other === name;
      tabs[index].setAttribute("aria-selected", String(isShown));
      tabs[index].tabIndex = isShown ? 0 : -1;
      panels[index].hidden = !isShown;
    });
    onShow(name);
  };

  /** @param {KeyboardEvent} event */
  const key = (event) => {
    const moves = /** @type {Record<string, number>} */ ({ ArrowRight: 1, ArrowLeft: -1 });
    const at = names.indexOf(shown);
    const to = { Home: 0, End: names.length - 1 }[event.key] ?? at + (moves[event.key] ?? NaN);
    const next = (to + names.length) % names.length;
    if (Number.isNaN(next)) return;
    event.preventDefault();
    show(names[next]);
    tabs[next].focus();
  };

  /**
   * @param {string} name
   * @param {string} text
   * @param {boolean} isWarning
   */
  const mark = (name, text, isWarning) => {
    const badge = marks[names.indexOf(name)];
    if (!badge) return;
    badge.classList.toggle("warn", isWarning);
    badge.textContent = text;
    badge.hidden = !text;
  };

  const bar = h("div", { class: "insp-tabs", role: "tablist", "aria-label": label, on: { keydown: key } }, tabs);
  return { bar, panels, shown: () => shown, show, mark };
}
