// Streaming pretty-printer for JSON. Other text passes through, except for white space between values.

const STEP = "  ";
const MAX_DEPTH = 20; // deeper indents would leave the screen
const MAX_CHARACTERS = 100_000; // one character may become a line of forty spaces: longer text passes through

/** Returns the text to show for each piece. */
export class Pretty {
  #depth = 0;
  #isInString = false;
  #isEscaped = false;
  #hasJustOpened = false;
  #left = MAX_CHARACTERS;

  /**
   * @param {string} piece
   * @returns {string}
   */
  feed(piece) {
    const part = piece.slice(0, this.#left);
    this.#left -= part.length;
    /** @type {string[]} */
    const shown = [];
    for (const letter of part) shown.push(this.#isInString ? this.#inString(letter) : this.#between(letter));
    return shown.join("") + piece.slice(part.length);
  }

  /** @param {string} letter */
  #inString(letter) {
    if (this.#isEscaped) this.#isEscaped = false;
    else if (letter === "\\") this.#isEscaped = true;
    else if (letter === '"') this.#isInString = false;
    return letter;
  }

  /** @param {string} letter */
  #between(letter) {
    if (letter === " " || letter === "\n" || letter === "\r" || letter === "\t") return "";
    if (letter === "}" || letter === "]") return this.#close(letter);
    const start = this.#hasJustOpened ? this.#line() : "";
    this.#hasJustOpened = false;
    return start + this.#open(letter);
  }

  /** @param {string} letter */
  #open(letter) {
    if (letter === '"') this.#isInString = true;
    if (letter === ":") return ": ";
    if (letter === ",") return letter + this.#line();
    if (letter === "{" || letter === "[") {
      this.#depth += 1;
      this.#hasJustOpened = true;
    }
    return letter;
  }

  /** @param {string} letter */
  #close(letter) {
    this.#depth = Math.max(0, this.#depth - 1);
    // An empty object stays on one line.
    const start = this.#hasJustOpened ? "" : this.#line();
    this.#hasJustOpened = false;
    return start + letter;
  }

  #line() {
    return `\n${STEP.repeat(Math.min(this.#depth, MAX_DEPTH))}`;
  }
}
