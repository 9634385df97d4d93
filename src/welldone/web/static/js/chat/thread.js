// The messages of a conversation, one article each. Existing articles are kept while others are added or removed.

import { fill, h } from "../dom.js";
import { waitingCalls } from "./conversation.js";
import { Follow } from "./follow.js";
import { makeSaid, makeSystem } from "./message.js";
import { makeReply, Reply } from "./reply.js";

/** @import { Conversation, Message } from "./conversation.js" */
/** @import { Acts } from "./message.js" */
/** @import { Run } from "./run.js" */

export class Thread {
  #acts;
  #list = h("div");
  #system = h("div");
  #welcome;
  #follow;
  /** @type {Map<Message, Reply | HTMLElement>} */
  #views = new Map();

  /**
   * @param {Acts} acts
   * @param {HTMLElement} welcome shown while there are no messages
   */
  constructor(acts, welcome) {
    this.#acts = acts;
    this.#welcome = welcome;
    const all = h("div", { class: "messages" }, this.#system, this.#list);
    // Announce an answer when it is complete, not word by word.
    const log = h(
      "div",
      { class: "log", role: "log", "aria-label": "Messages", "aria-live": "off", tabIndex: 0 },
      welcome,
      all,
    );
    this.#follow = new Follow(log, all);
    this.element = h("div", { class: "thread" }, log, this.#follow.button);
  }

  /**
   * Show a conversation, or update it.
   *
   * @param {Conversation} conversation
   * @param {Run | undefined} run its running answer
   */
  show({ messages, system }, run) {
    this.showSystem(messages.length ? system : "");
    const before = this.#views;
    this.#views = new Map(messages.map((message) => [message, before.get(message) ?? this.#make(message, run)]));
    for (const [message, view] of before) if (!this.#views.has(message)) elementOf(view).remove();
    let last = null;
    for (const view of this.#views.values()) last = this.#place(elementOf(view), last);
    const waiting = run ? [] : waitingCalls(messages);
    for (const [message, view] of this.#views) {
      if (view instanceof Reply) view.setWaiting(waiting.length > 0 && message === messages.at(-1));
    }
    this.#welcome.hidden = messages.length > 0;
  }

  /**
   * Rebuild the article of a changed message.
   *
   * @param {Message} message
   */
  forget(message) {
    const view = this.#views.get(message);
    if (view) elementOf(view).remove();
    this.#views.delete(message);
  }

  /** @param {string} text the system prompt */
  showSystem(text) {
    fill(this.#system, makeSystem(text, this.#acts.editSystem));
  }

  toEnd() {
    this.#follow.toEnd();
  }

  /**
   * Focus the choice of versions of an answer.
   *
   * @param {Message} message
   */
  focusVersions(message) {
    const view = this.#views.get(message);
    const versions = view && elementOf(view).querySelector(".versions");
    if (versions instanceof HTMLElement) versions.focus();
  }

  /** Focus the result input of a tool call. */
  focusResult() {
    const view = [...this.#views.values()].at(-1);
    if (view instanceof Reply) view.focusResult();
  }

  /**
   * @param {Message} message
   * @param {Run | undefined} run
   */
  #make(message, run) {
    if (message.role !== "assistant") return makeSaid(message, this.#acts);
    return run?.message === message ? run.reply : makeReply(message, this.#acts);
  }

  /**
   * @param {HTMLElement} element
   * @param {Element | null} before
   */
  #place(element, before) {
    const wanted = before ? before.nextElementSibling : this.#list.firstElementChild;
    if (wanted !== element) this.#list.insertBefore(element, wanted);
    return element;
  }
}

/** @param {Reply | HTMLElement} view */
function elementOf(view) {
  return view instanceof Reply ? view.element : view;
}
