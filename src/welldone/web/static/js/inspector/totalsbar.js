// The bar of totals. Elements stay in place while values change, so that they can be selected and copied.

import { copy } from "../clipboard.js";
import { fill, h } from "../dom.js";

/** @import { Figure } from "./totals.js" */

export class TotalsBar {
  #list = h("dl");
  #labels = "";
  /** @type {HTMLElement[]} */
  #values = [];
  element = h("div", { class: "totals", role: "group", "aria-label": "Totals" }, this.#list);

  /** @param {Figure[]} figures */
  update(figures) {
    const labels = figures.map(({ label }) => label).join();
    if (labels !== this.#labels) this.#make(figures);
    this.#labels = labels;
    figures.forEach(({ value, tone }, index) => {
      const element = this.#values[index];
      if (element.textContent !== value) element.textContent = value;
      element.dataset.tone = tone ?? "";
    });
  }

  /** @param {Figure[]} figures */
  #make(figures) {
    this.#values = figures.map(({ label, copies }) => (copies ? copyable(label) : h("span")));
    const pairs = figures.map(({ label }, index) =>
      h("div", {}, h("dt", {}, label), h("dd", {}, this.#values[index])));
    fill(this.#list, pairs);
  }
}

/** @param {string} label */
function copyable(label) {
  const button = h("button", { class: "link mono", title: `Copy the ${label.toLowerCase()}` });
  button.addEventListener("click", () => void copy(button.textContent ?? ""));
  return button;
}
