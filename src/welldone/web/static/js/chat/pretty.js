// JSON with line breaks and indents while it still comes. What is not JSON passes through, but for white space between
// its values.

const STEP = "  ";
const MOST_DEPTH = 40; // deeper lines would only move out of sight

/** Feed it pieces; it gives the piece to show for each. */
export class Pretty {
  #depth = 0;
  #isInString = false;
  #isEscaped = false;
  #hasJustOpened = false;

  /**
   * @param {string} piece
   * @returns {string}
   */
  feed(piece) {
    /** @type {string[]} */
    const shown = [];
    for (const letter of piece) shown.push(this.#isInString ? this.#inString(letter) : this.#between(letter));
    return shown.join("");
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
    // An empty object stays on its line.
    const start = this.#hasJustOpened ? "" : this.#line();
    this.#hasJustOpened = false;
    return start + letter;
  }

  #line() {
    return `\n${STEP.repeat(Math.min(this.#depth, MOST_DEPTH))}`;
  }
}
