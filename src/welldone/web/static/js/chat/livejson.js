// Pretty-prints a JSON answer while it streams. An answer that turns out not to be JSON is shown as usual.

import { Live } from "../markdown/index.js";
import { Pretty } from "./pretty.js";

const FENCE = "~~~~~~"; // no line of indented JSON begins with it

export class LiveJson {
  #live;
  #pretty = new Pretty();
  /** @type {boolean | null} null: nothing was heard yet */
  #isJson = null;

  /** @param {HTMLElement} root */
  constructor(root) {
    this.#live = new Live(root);
  }

  /** @param {string} piece */
  append(piece) {
    if (this.#isJson === null) {
      const start = piece.trimStart()[0];
      if (start === undefined) return;
      this.#isJson = start === "{" || start === "[";
      if (this.#isJson) this.#live.append(`${FENCE}json\n`);
    }
    this.#live.append(this.#isJson ? this.#pretty.feed(piece) : piece);
  }

  end() {
    if (this.#isJson) this.#live.append(`\n${FENCE}`);
    this.#live.end();
  }
}
