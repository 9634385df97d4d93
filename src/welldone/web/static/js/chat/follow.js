// Keeps the end of a growing text in sight, unless its reader went up to read.

import { h } from "../dom.js";

const NEAR = 40; // pixels from the end that still count as the end: two lines

export class Follow {
  #room;
  #isFollowing = true;
  #last = 0;

  /**
   * @param {HTMLElement} room that scrolls
   * @param {HTMLElement} text that grows in it
   */
  constructor(room, text) {
    this.#room = room;
    this.button = h("button", { class: "jump", hidden: true }, "↓ Jump to the end");
    this.button.addEventListener("click", () => this.toEnd());
    room.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    const grown = new ResizeObserver(() => this.#grown());
    grown.observe(text);
    grown.observe(room);
  }

  /** Go to the end, and stay there. */
  toEnd() {
    this.#isFollowing = true;
    this.#grown();
  }

  #grown() {
    if (this.#isFollowing) this.#room.scrollTop = this.#room.scrollHeight;
    this.#showButton();
  }

  #scrolled() {
    const { scrollTop } = this.#room;
    // Text may have grown since the last scroll: only who went up has left the end.
    if (scrollTop < this.#last - 1) this.#isFollowing = false;
    if (this.#distance() < NEAR) this.#isFollowing = true;
    this.#last = scrollTop;
    this.#showButton();
  }

  #distance() {
    const { scrollHeight, scrollTop, clientHeight } = this.#room;
    return scrollHeight - scrollTop - clientHeight;
  }

  #showButton() {
    this.button.hidden = this.#isFollowing || this.#distance() < NEAR;
  }
}
