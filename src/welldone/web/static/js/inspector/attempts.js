// The attempts of an exchange, in order.

import { badge } from "../badge.js";
import { fill, h } from "../dom.js";
import { seconds } from "../format.js";
import { visible } from "../text.js";

export class AttemptList {
  #shown = "";
  element = h("ul", { class: "attempts", "aria-label": "Attempts", hidden: true });

  /** @param {Attempt[]} attempts */
  update(attempts) {
    const shown = JSON.stringify(attempts.map(({ server, status, error }) => [server, status, error]));
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.element.hidden = attempts.length === 0;
    fill(this.element, attempts.map(attemptItem));
  }
}

/** @param {Attempt} attempt */
function attemptItem({ server, status, error, began_s, is_local, continues }) {
  const tone = error || (status ?? 0) >= 400 ? "bad" : status === null ? "" : "good";
  const result = status !== null ? String(status) : error ? "no response" : "no response yet";
  return h("li", { class: "small" }, badge(result, tone),
    ` ${visible(server)}${is_local ? " (local model)" : ""}, started at ${seconds(began_s)}`,
    continues && ` to continue the answer (${continues})`,
    error && error !== result && h("span", { class: "is-error" }, `: ${visible(error)}`));
}
