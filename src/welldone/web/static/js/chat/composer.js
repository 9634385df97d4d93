// The message input, with buttons to send and to stop.

import { h } from "../dom.js";

export class Composer {
  #send;
  #box = h("textarea", { id: "message", rows: 1, placeholder: "Write a message" });
  #sendButton = h("button", { type: "submit", class: "primary", disabled: true }, "Send");
  #stopButton = h("button", { hidden: true, title: "Esc" }, "Stop");

  /**
   * @param {(text: string) => boolean} send returns false to keep the text
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

  /** @param {boolean} isReady whether a model is available */
  setReady(isReady) {
    this.#sendButton.disabled = !isReady;
  }

  /** @param {boolean} isRunning whether an answer is streaming */
  setRunning(isRunning) {
    const hadFocus = document.activeElement === this.#stopButton || document.activeElement === this.#sendButton;
    this.#sendButton.hidden = isRunning;
    this.#stopButton.hidden = !isRunning;
    // Keep the focus when the button disappears.
    if (hadFocus) this.focus();
  }

  /** @param {KeyboardEvent} event */
  #typed(event) {
    // During IME composition Enter confirms the input. Safari reports that only by key code 229.
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
