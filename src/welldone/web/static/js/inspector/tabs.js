// Tabs: one of several panels is shown. Arrow keys go from tab to tab.

import { h } from "../dom.js";

let made = 0;

/**
 * @typedef {object} Tabs
 * @property {HTMLElement} bar
 * @property {HTMLElement[]} panels
 * @property {() => string} shown
 * @property {(name: string) => void} show
 * @property {(name: string, mark: string, isWarning: boolean) => void} mark puts a number beside a name
 */

/**
 * @param {string} label
 * @param {Record<string, HTMLElement>} rooms what is in each panel, by its name
 * @param {(name: string) => void} [shows] told when another one is shown
 * @returns {Tabs}
 */
export function makeTabs(label, rooms, shows = () => {}) {
  const id = `tabs-${++made}`;
  const names = Object.keys(rooms);
  const marks = names.map(() => h("span", { class: "badge", "aria-hidden": "true", hidden: true }));
  const tabs = names.map((name, place) =>
    h("button", { class: "quiet mini insp-tab", role: "tab", id: `${id}-tab-${place}`,
      "aria-controls": `${id}-panel-${place}`, on: { click: () => show(name) } }, name, marks[place]),
  );
  const panels = names.map((name, place) =>
    h("div", { class: "insp-panel", role: "tabpanel", id: `${id}-panel-${place}`,
      "aria-labelledby": `${id}-tab-${place}`, hidden: true }, rooms[name]),
  );
  let shown = "";

  /** @param {string} name */
  const show = (name) => {
    shown = name;
    names.forEach((other, place) => {
      const isShown = other === name;
      tabs[place].setAttribute("aria-selected", String(isShown));
      tabs[place].tabIndex = isShown ? 0 : -1;
      panels[place].hidden = !isShown;
    });
    shows(name);
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
