// The <article> of a message; complete for user, tool and system messages.

import { h } from "../dom.js";
import { count } from "../format.js";
import { pieces, visible } from "../text.js";
import { makeEditor } from "./editor.js";
import { makeThumbnail } from "./images.js";

/** @import { Message } from "./conversation.js" */

/**
 * @typedef {object} Acts what a person can do to a message
 * @property {(message: Message) => void} retry
 * @property {(message: Message, text: string) => void} edit
 * @property {(message: Message) => void} copy
 * @property {(message: Message) => void} remove
 * @property {(message: Message, place: number) => void} showVersion shows another version of an answer
 * @property {(results: string[]) => void} sendResults
 * @property {() => void} editSystem
 */

const WHO = { user: "You", assistant: "Assistant", tool: "Tool" };
const LONG = 20_000; // characters shown before "more"

/**
 * The parts of every message: author, body, footer, buttons.
 *
 * @param {Message} message
 * @param {Acts} acts
 */
export function makeArticle(message, acts) {
  const body = h("div", { class: "message-body" });
  const facts = h("div", { class: "message-facts" });
  const buttons = h(
    "div",
    { class: "message-buttons" },
    button("Copy", () => acts.copy(message)),
    button("Edit", () => editIn(body, message, acts)),
    button("Retry", () => acts.retry(message)),
    button("Delete", () => acts.remove(message)),
  );
  const element = h(
    "article",
    { class: `message ${message.role}`, "aria-label": WHO[message.role] },
    h("div", { class: "message-who", "aria-hidden": "true" }, WHO[message.role]),
    body,
    h("div", { class: "message-foot" }, makeVersions(message, acts), buttons, facts),
  );
  return { element, body, facts };
}

/**
 * The choice between versions of an answer; nothing if there is one.
 *
 * @param {Message} message
 * @param {Acts} acts
 */
function makeVersions(message, acts) {
  const { others = [], place = 0 } = message;
  if (!others.length) return null;
  /**
   * @param {string} sign
   * @param {string} label
   * @param {number} to
   */
  const step = (sign, label, to) =>
    h("button", { class: "quiet mini", "aria-label": label, title: label, disabled: to < 0 || to > others.length,
      on: { click: () => acts.showVersion(message, to) } }, sign);
  return h("div", { class: "versions", role: "group", "aria-label": "Versions of the answer", tabIndex: -1 },
    step("‹", "Previous version", place - 1), h("span", {}, `${place + 1}/${others.length + 1}`),
    step("›", "Next version", place + 1));
}

/**
 * The article of a user or tool message, as plain text.
 *
 * @param {Message} message
 * @param {Acts} acts
 */
export function makeSaid(message, acts) {
  const { element, body } = makeArticle(message, acts);
  if (message.content) body.append(plainText(message.content));
  if (message.images?.length) body.append(makeImages(message.images));
  return element;
}

/** @param {string[]} images */
function makeImages(images) {
  return h("div", { class: "images" }, images.map((url, n) => makeThumbnail(url, `Image ${n + 1}`)));
}

/**
 * The article of the system prompt.
 *
 * @param {string} text
 * @param {() => void} edit
 */
export function makeSystem(text, edit) {
  return h(
    "article",
    { class: "message system", "aria-label": "System", hidden: !text.trim() },
    h("div", { class: "message-who", "aria-hidden": "true" }, "System"),
    h("div", { class: "message-body" }, plainText(text)),
    h("div", { class: "message-foot" }, h("div", { class: "message-buttons" }, button("Edit", edit))),
  );
}

/**
 * Plain text; the rest of a long one is shown on demand.
 *
 * @param {string} text
 */
function plainText(text) {
  const [start = "", ...rest] = text.length > LONG ? pieces(text, LONG) : [text];
  const shown = h("div", { class: "plain", dir: "auto" }, visible(start));
  if (!rest.length) return shown;
  const more = h("button", { class: "mini" }, `Show all ${count(text.length)} characters`);
  more.addEventListener("click", () => {
    more.remove();
    shown.append(...rest.map((piece) => h("span", {}, visible(piece))));
  });
  return h("div", {}, shown, more);
}

/**
 * Replace the text of a message by an editor.
 *
 * @param {HTMLElement} body
 * @param {Message} message
 * @param {Acts} acts
 */
function editIn(body, message, acts) {
  if (body.hidden) return;
  body.hidden = true;
  const back = document.activeElement;
  const close = () => {
    editor.element.remove();
    body.hidden = false;
    if (back instanceof HTMLElement) back.focus();
  };
  const editor = makeEditor(message.content, message.role === "user" ? "Save and send" : "Save", {
    save: (text) => acts.edit(message, text),
    cancel: close,
  });
  body.after(editor.element);
  editor.focus();
}

/**
 * @param {string} label
 * @param {() => void} act
 */
function button(label, act) {
  return h("button", { class: "quiet mini", on: { click: act } }, label);
}
