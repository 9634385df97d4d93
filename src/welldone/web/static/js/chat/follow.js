// Keeps the end of a growing text in view, unless the user scrolls up.

import { h } from "../dom.js";

const NEAR = 40; // pixels from the end that count as the end: two lines

export class Follow {
  #container;
  #isFollowing = true;
  #last = 0;

  /**
   * @param {HTMLElement} container that scrolls
   * @param {HTMLElement} text that grows in it
   */
  constructor(container, text) {
    this.#container = container;
    this.button = h("button", { class: "jump", hidden: true }, "↓ Jump to the end");
    this.button.addEventListener("click", () => this.toEnd());
    container.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    const grown = new ResizeObserver(() => this.#grown());
    grown.observe(text);
    grown.observe(container);
  }

  /** Scroll to the end and follow it. */
  toEnd() {
    this.#isFollowing = true;
    this.#grown();
  }

  #grown() {
    if (this.#isFollowing) this.#container.scrollTop = this.#container.scrollHeight;
    this.#showButton();
  }

  #scrolled() {
    const { scrollTop } = this.#container;
    // The text may have grown since the last scroll: only scrolling up stops following.
    if (scrollTop < this.#last - 1) this.#isFollowing = false;
    if (this.#distance() < NEAR) this.#isFollowing = true;
    this.#last = scrollTop;
    this.#showButton();
  }

  #distance() {
    const { scrollHeight, scrollTop, clientHeight } = this.#container;
    return scrollHeight - scrollTop - clientHeight;
  }

  #showButton() {
    this.button.hidden = this.#isFollowing || this.#distance() < NEAR;
  }
}
