// The chat view: a conversation, the list of conversations, and settings.

import { copy } from "../clipboard.js";
import { toast } from "../dialog.js";
import { h } from "../dom.js";
import { shortcut } from "../keys.js";
import { Composer } from "./composer.js";
import {
  addVersion, keptForRetry, newConversation, newMessage, retriedAnswer, waitingCalls, withVersion, without,
} from "./conversation.js";
import { Library } from "./library.js";
import { ModelPicker } from "./models.js";
import { FIELDS, readOptions } from "./options.js";
import { defaultPreset, withPreset } from "./presets.js";
import { Run } from "./run.js";
import { Settings } from "./settings.js";
import { Thread } from "./thread.js";
import { makeWelcome } from "./welcome.js";

/** @import { Conversation, Message } from "./conversation.js" */
/** @import { Acts } from "./message.js" */

const ENDS = { whole: "Answer complete", stopped: "Answer stopped", broken: "Answer interrupted" };

/**
 * @param {HTMLElement} root
 * @param {Page} page
 */
export function makeChat(root, page) {
  const chat = new Chat(page);
  root.append(...chat.elements);
  root.classList.add("chat");
  root.addEventListener("keydown", (event) => chat.typed(event));
  shortcut("Alt+N", "New conversation", () => chat.create());
  shortcut("Alt+M", "Write a message", () => chat.focus());
  // Models may have been loaded in the server view.
  window.addEventListener("hashchange", () => root.hidden || void chat.models.refresh());
  void chat.start();
}

class Chat {
  #page;
  #conversation = withPreset(newConversation(), defaultPreset());
  /** @type {Map<string, Run>} answers under way, by the id of their conversation */
  #runs = new Map();
  #status = h("div", { role: "status", class: "sr-only" });

  /** @param {Page} page */
  constructor(page) {
    this.#page = page;
    this.welcome = makeWelcome((text) => this.#send(text));
    this.models = new ModelPicker(page, () => this.#changedModel());
    this.settings = new Settings(() => this.#changedSettings());
    this.composer = new Composer(
      (text, images) => this.#send(text, images),
      () => this.#stop(),
    );
    this.thread = new Thread(this.#acts(), this.welcome.element);
    this.library = new Library({
      live: (id) => (id === this.#conversation.id ? this.#conversation : this.#runs.get(id)?.conversation),
      shown: () => this.#conversation.id,
      create: () => this.create(),
      open: (id) => this.open(id),
      removed: (id) => this.#removed(id),
    });
    const { sidebar } = this.library;
    this.elements = [
      sidebar.element,
      h(
        "div",
        { class: "talk" },
        h("div", { class: "talk-head" }, sidebar.button, this.models.element, this.settings.button),
        this.thread.element,
        this.composer.element,
        this.#status,
      ),
      this.settings.element,
    ];
    this.#show();
  }

  async start() {
    void this.models.refresh();
    const newest = await this.library.start();
    // The user may have started one already.
    if (newest && !this.#conversation.messages.length) await this.open(newest);
    else this.#rest();
  }

  focus() {
    this.composer.focus();
  }

  create() {
    this.#conversation = withPreset(newConversation(), defaultPreset());
    this.#turnTo();
  }

  /** @param {string} id */
  async open(id) {
    const conversation = await this.library.load(id);
    if (!conversation) return;
    this.#conversation = conversation;
    this.models.choose(conversation.model);
    this.#turnTo();
  }

  /** @param {KeyboardEvent} event */
  typed(event) {
    if (event.key !== "Escape" || event.defaultPrevented || event.isComposing) return;
    if (this.library.sidebar.isOpen) this.library.sidebar.close();
    else if (this.settings.isOpen && this.settings.element.contains(/** @type {Node} */ (event.target))) {
      this.settings.close();
    } else this.#stop();
  }

  /** Show another conversation. */
  #turnTo() {
    this.library.sidebar.close();
    this.#show();
    this.thread.toEnd();
    this.#rest();
    void this.library.refresh();
  }

  /** Focus the message input, except on touch devices, where that opens the keyboard. */
  #rest() {
    if (matchMedia("(pointer: fine)").matches) this.focus();
  }

  #show() {
    const run = this.#runs.get(this.#conversation.id);
    this.thread.show(this.#conversation, run);
    this.settings.show(this.#conversation);
    this.composer.setRunning(run !== undefined);
  }

  /** @returns {Acts} */
  #acts() {
    return {
      retry: (message) => void this.#retry(message),
      edit: (message, text) => void this.#edit(message, text),
      copy: ({ content, refusal }) => void copy(content || refusal || ""),
      remove: (message) => void this.#remove(message),
      showVersion: (message, place) => void this.#showVersion(message, place),
      sendResults: (results) => this.#sendResults(results),
      editSystem: () => this.settings.open(),
    };
  }

  /**
   * Send a message; false if it cannot be sent now.
   *
   * @param {string} text
   * @param {string[]} [images]
   */
  #send(text, images = []) {
    if (!this.#canAsk(images.length > 0)) return false;
    if (waitingCalls(this.#conversation.messages).length) {
      toast("The model waits for results of its tool calls.");
      this.thread.focusResult();
      return false;
    }
    const message = newMessage("user", text);
    if (images.length) message.images = images;
    this.#conversation.messages.push(message);
    void this.#ask();
    this.focus();
    return true;
  }

  /** @param {string[]} results */
  #sendResults(results) {
    if (!this.#canAsk()) return;
    const calls = waitingCalls(this.#conversation.messages);
    const said = calls.map(({ id }, place) => ({ ...newMessage("tool", results[place] ?? ""), tool_call_id: id }));
    this.#conversation.messages.push(...said);
    void this.#ask();
    this.focus();
  }

  /**
   * Whether a request can be sent. Otherwise shows what is missing or invalid.
   *
   * @param {boolean} [hasImages] whether the next message has some
   */
  #canAsk(hasImages = false) {
    const { options, messages } = this.#conversation;
    const { errors } = readOptions(options);
    const wrong = FIELDS.find(({ name }) => name in errors);
    const isBlind = (hasImages || messages.some(({ images }) => images?.length)) && !this.models.maySee;
    if (wrong) {
      toast(`${wrong.label} cannot be sent. ${errors[wrong.name]}`, "error");
      this.settings.open(wrong.name);
    } else if (!this.models.model) {
      toast("No model is available yet.", "error");
    } else if (isBlind) {
      toast(`${this.models.model} does not accept images: select another model, or remove them.`, "error");
    }
    return !wrong && !isBlind && this.models.model !== "" && !this.#runs.has(this.#conversation.id);
  }

  /**
   * Request the next answer in the current conversation.
   *
   * @param {Message} [answer] its message, still empty
   */
  async #ask(answer = newMessage("assistant", "")) {
    const conversation = this.#conversation;
    const { model, isCold } = this.models;
    conversation.model = model;
    conversation.updated_at = Date.now();
    const run = new Run(this.#page, conversation, model, this.#acts(), answer);
    this.#runs.set(conversation.id, run);
    this.#status.textContent = "";
    this.#show();
    this.thread.toEnd();
    void this.library.save(conversation);
    // Do not restore a conversation deleted in the meantime.
    const isWanted = () => this.#runs.get(conversation.id) === run;
    const outcome = await run.go(() => isWanted() && this.#save(conversation));
    if (isWanted()) this.#runs.delete(conversation.id);
    this.#status.textContent = ENDS[outcome];
    if (conversation === this.#conversation) this.#show();
    if (isCold) void this.models.refresh();
  }

  #stop() {
    this.#runs.get(this.#conversation.id)?.stop();
  }

  /**
   * Stop a running answer and wait for its end before a message is changed. Returns whether the message still exists:
   * another conversation may be shown by then.
   *
   * @param {Message} message
   */
  async #settle(message) {
    const run = this.#runs.get(this.#conversation.id);
    run?.stop();
    await run?.settled;
    return this.#conversation.messages.includes(message);
  }

  /** @param {Message} message */
  async #retry(message) {
    if (!(await this.#settle(message)) || !this.#canAsk()) return;
    const { messages } = this.#conversation;
    const replaced = retriedAnswer(messages, message);
    this.#conversation.messages = keptForRetry(messages, message);
    const answer = newMessage("assistant", "");
    if (replaced) addVersion(answer, messages, replaced);
    void this.#ask(answer);
    this.focus();
  }

  /**
   * @param {Message} message
   * @param {number} place
   */
  async #showVersion(message, place) {
    if (!(await this.#settle(message))) return;
    const { messages } = this.#conversation;
    const at = messages.indexOf(message);
    this.#put(this.#conversation, withVersion(messages, message, place));
    this.thread.focusVersions(this.#conversation.messages[at]);
  }

  /**
   * @param {Message} message
   * @param {string} text
   */
  async #edit(message, text) {
    if (!(await this.#settle(message)) || (message.role === "user" && !this.#canAsk())) return;
    message.content = text;
    this.thread.forget(message);
    // The answers to the text before the edit are no versions of the next one.
    if (message.role === "user") this.#conversation.messages = keptForRetry(this.#conversation.messages, message);
    if (message.role === "user") await this.#retry(message);
    else this.#put(this.#conversation, this.#conversation.messages);
    this.focus();
  }

  /** @param {Message} message */
  async #remove(message) {
    if (!(await this.#settle(message))) return;
    const { id, messages } = this.#conversation;
    this.#put(this.#conversation, without(messages, message));
    toast("Message deleted.", "info", { label: "Undo", act: () => void this.#undo(id, messages) });
    this.focus();
  }

  /**
   * Restore deleted messages. Later messages stay after them.
   *
   * @param {string} id of their conversation
   * @param {Message[]} before
   */
  async #undo(id, before) {
    const conversation = await this.library.load(id);
    if (!conversation) return;
    const known = new Set(before.map((message) => message.id));
    this.#put(conversation, [...before, ...conversation.messages.filter((message) => !known.has(message.id))]);
  }

  /**
   * @param {Conversation} conversation
   * @param {Message[]} messages
   */
  #put(conversation, messages) {
    conversation.messages = messages;
    if (conversation === this.#conversation) this.#show();
    this.#save(conversation);
  }

  /** @param {string} id of a conversation that was deleted */
  #removed(id) {
    const run = this.#runs.get(id);
    run?.stop();
    this.#runs.delete(id);
    if (id === this.#conversation.id) this.create();
  }

  #changedModel() {
    this.welcome.setModel(this.models.model);
    this.composer.setReady(this.models.model !== "", this.models.maySee);
  }

  #changedSettings() {
    if (!this.#conversation.messages.length) return;
    this.thread.showSystem(this.#conversation.system);
    this.#save(this.#conversation);
  }

  /** @param {Conversation} conversation */
  #save(conversation) {
    void this.library.save(conversation);
  }
}
