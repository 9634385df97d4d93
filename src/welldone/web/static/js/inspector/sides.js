// Switch between the frames sent to the client and those of the upstream.

import { h } from "../dom.js";
import { count } from "../format.js";

/** @typedef {"sent" | "upstream"} Side */

const NAMES = /** @type {const} */ ({ sent: "Sent to you", upstream: "Upstream" });
const HINTS = { sent: "The repaired stream, as sent to you", upstream: "The stream of the upstream, as received" };
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
    SIDES.forEach((other, index) => this.#buttons[index].setAttribute("aria-pressed", String(other === side)));
  }

  /**
   * Show the number of frames on each side; null if unknown.
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

/** Hidden from screen readers, which read the row count of the grid. */
function makeCount() {
  return h("span", { class: "soft small", "aria-hidden": "true" });
}
