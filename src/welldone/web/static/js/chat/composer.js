// The box in which a message is written, with the buttons that send it and stop its answer.

import { h } from "../dom.js";

export class Composer {
  #send;
  #box = h("textarea", { id: "message", rows: 1, placeholder: "Write a message" });
  #sendButton = h("button", { type: "submit", class: "primary", disabled: true }, "Send");
  #stopButton = h("button", { hidden: true, title: "Esc" }, "Stop");

  /**
   * @param {(text: string) => boolean} send whether it was taken; if not, the text stays
   * @param {() => void} stop
   */
  constructor(send, stop) {
    this.#send = send;
    this.#stopButton.addEventListener("click", stop);
    this.#box.addEventListener("keydown", (event) => this.#typed(event));
    this.element = h(
      "form",
      { class: "composer" },
      h("label", { for: "message", class: "sr-only" }, "Message"),
      this.#box,
      this.#sendButton,
      this.#stopButton,
    );
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
  }

  focus() {
    this.#box.focus();
  }

  /** @param {boolean} isReady whether there is a model to talk to */
  setReady(isReady) {
    this.#sendButton.disabled = !isReady;
  }

  /** @param {boolean} isRunning whether an answer comes now */
  setRunning(isRunning) {
    const hadFocus = document.activeElement === this.#stopButton || document.activeElement === this.#sendButton;
    this.#sendButton.hidden = isRunning;
    this.#stopButton.hidden = !isRunning;
    // A button that vanishes must not take the focus with it.
    if (hadFocus) this.focus();
  }

  /** @param {KeyboardEvent} event */
  #typed(event) {
    // While letters are put together (Japanese, Chinese), Enter belongs to that. Safari says it only by this number.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    this.#submit();
  }

  #submit() {
    const text = this.#box.value;
    if (!text.trim() || this.#sendButton.hidden || !this.#send(text)) return;
    this.#box.value = "";
    this.focus();
  }
}
