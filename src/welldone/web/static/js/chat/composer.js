// The message input, with images and buttons to send and to stop.

import { toast } from "../dialog.js";
import { fill, h } from "../dom.js";
import { keepDraft } from "../draft.js";
import { pick } from "../files.js";
import { ACCEPTED, ImageError, makeThumbnail, MAX_IMAGES, readImage } from "./images.js";

const BLIND = "The selected model does not accept images.";

export class Composer {
  #send;
  #keepDraft;
  #box = h("textarea", { id: "message", rows: 1, placeholder: "Write a message" });
  #sendButton = h("button", { type: "submit", class: "primary", disabled: true }, "Send");
  #stopButton = h("button", { hidden: true, title: "Esc" }, "Stop");
  #attachButton = h("button", { class: "quiet", "aria-label": "Attach an image" }, "Image");
  /** @type {string[]} */
  #images = [];
  #strip = h("ul", { class: "attached", "aria-label": "Attached images", hidden: true });
  #maySee = true;

  /**
   * @param {(text: string, images: string[]) => boolean} send returns false to keep the text
   * @param {() => void} stop
   */
  constructor(send, stop) {
    this.#send = send;
    this.#stopButton.addEventListener("click", stop);
    this.#attachButton.addEventListener("click", () => void this.#pick());
    this.#box.addEventListener("keydown", (event) => this.#typed(event));
    this.#box.addEventListener("paste", (event) => this.#take(event, event.clipboardData));
    this.#keepDraft = keepDraft(this.#box, "welldone.draft");
    this.element = h(
      "form",
      { class: "composer" },
      this.#strip,
      h("label", { for: "message", class: "sr-only" }, "Message"),
      this.#box,
      this.#attachButton,
      this.#sendButton,
      this.#stopButton,
    );
    this.element.addEventListener("dragover", (event) => {
      if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
    });
    this.element.addEventListener("drop", (event) => this.#take(event, event.dataTransfer));
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
  }

  focus() {
    this.#box.focus();
  }

  /**
   * @param {boolean} isReady whether a model is available
   * @param {boolean} maySee whether it may accept images
   */
  setReady(isReady, maySee) {
    this.#sendButton.disabled = !isReady;
    this.#maySee = maySee;
    this.#attachButton.title = maySee ? "Attach, paste or drop images" : BLIND;
    this.#attachButton.setAttribute("aria-disabled", String(!maySee));
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
    const isEmpty = !text.trim() && !this.#images.length;
    if (isEmpty || this.#sendButton.hidden || !this.#send(text, this.#images)) return;
    this.#box.value = "";
    this.#keepDraft();
    this.#setImages([]);
    this.focus();
  }

  async #pick() {
    if (!this.#maySee) {
      toast(BLIND);
      return;
    }
    const file = await pick(ACCEPTED);
    if (file) await this.#attach([file]);
  }

  /**
   * Attach pasted or dropped files. Text is left to the browser.
   *
   * @param {Event} event
   * @param {DataTransfer | null} data
   */
  #take(event, data) {
    const files = [...(data?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    if (this.#maySee) void this.#attach(files);
    else toast(BLIND);
  }

  /** @param {File[]} files */
  async #attach(files) {
    for (const file of files) {
      if (this.#images.length === MAX_IMAGES) {
        toast(`A message can have ${MAX_IMAGES} images.`, "error");
        return;
      }
      try {
        this.#setImages([...this.#images, await readImage(file)]);
      } catch (error) {
        if (!(error instanceof ImageError)) throw error;
        toast(error.message, "error");
      }
    }
    this.focus();
  }

  /** @param {string[]} images */
  #setImages(images) {
    this.#images = images;
    this.#strip.hidden = !images.length;
    fill(this.#strip, images.map((url, place) => {
      const remove = () => {
        this.#setImages(images.filter((_, other) => other !== place));
        this.focus();
      };
      return h("li", {}, makeThumbnail(url, `Image ${place + 1}`),
        h("button", { class: "mini", "aria-label": `Remove image ${place + 1}`, on: { click: remove } }, "✕"));
    }));
  }
}
