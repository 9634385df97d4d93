// Whose frames are listed: those we were sent, or the upstream's.

import { h } from "../dom.js";
import { count } from "../format.js";

/** @typedef {"sent" | "upstream"} Side */

const NAMES = /** @type {const} */ ({ sent: "Sent to you", upstream: "Upstream" });
const HINTS = { sent: "What came out of welldone, repaired", upstream: "What the model's server said, as it came" };
const SIDES = /** @type {Side[]} */ (Object.keys(NAMES));

export class SideSwitch {
  #counts = { sent: makeCount(), upstream: makeCount() };
  #buttons;

  /** @param {(side: Side) => void} choose */
  constructor(choose) {
    this.#buttons = SIDES.map((side) =>
      h("button", { class: "mini", title: HINTS[side], on: { click: () => choose(side) } },
        NAMES[side], this.#counts[side]),
    );
    this.element = h("div", { class: "sides", role: "group", "aria-label": "Frames of" }, this.#buttons);
  }

  /** @param {Side} side */
  press(side) {
    SIDES.forEach((other, place) => this.#buttons[place].setAttribute("aria-pressed", String(other === side)));
  }

  /**
   * How many frames each has; null where that is not known.
   *
   * @param {Record<Side, number | null>} counts
   */
  count(counts) {
    for (const side of SIDES) {
      const frames = counts[side];
      this.#counts[side].textContent = frames === null ? "" : count(frames);
    }
  }
}

/** The grid says how many rows it has: there is no need to hear it here too. */
function makeCount() {
  return h("span", { class: "soft small", "aria-hidden": "true" });
}
