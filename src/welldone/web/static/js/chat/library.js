// Stored conversations: the list and its actions.

import { dialog, toast } from "../dialog.js";
import { h } from "../dom.js";
import { pick, read as readFile, save as saveFile } from "../files.js";
import { count } from "../format.js";
import { titleOf } from "./conversation.js";
import { Sidebar } from "./sidebar.js";
import { MemoryStore, openStore, StoreError } from "./store.js";
import { MAX_BYTES, read, TransferError, write } from "./transfer.js";

/** @import { Conversation } from "./conversation.js" */
/** @import { Head, Store } from "./store.js" */

/**
 * @typedef {object} Chat what the library must know of the chat
 * @property {() => string} shown the id of the conversation that is shown
 * @property {(id: string) => Conversation | undefined} live the conversation, if it is shown or answered
 * @property {() => void} create
 * @property {(id: string) => Promise<void>} open
 * @property {(id: string) => void} removed
 */

const TITLE_LENGTH = 120;
const NO_STORAGE = "This browser does not store conversations: they are lost when the page is closed. Export them.";

export class Library {
  #chat;
  /** @type {Store} */
  #store = new MemoryStore();
  /** @type {Set<string> | null} those that a search found; null: there is no search */
  #found = null;

  /** @param {Chat} chat */
  constructor(chat) {
    this.#chat = chat;
    this.sidebar = new Sidebar({
      create: chat.create,
      open: (id) => void chat.open(id),
      rename: (head) => void this.#rename(head),
      remove: (head) => void this.#remove(head),
      search: (words) => void this.#search(words),
      exportOne: (head) => void this.#exportOne(head),
      exportAll: () => void this.#export(),
      importFile: () => void this.#import(),
    });
  }

  /** Id of the conversation that was changed last. */
  async start() {
    this.#store = await openStore();
    this.sidebar.note(this.#store.isLasting ? "" : NO_STORAGE);
    const [newest] = await this.refresh();
    return newest?.id;
  }

  /**
   * The current state of a conversation, which may be newer than the stored one.
   *
   * @param {string} id
   */
  async load(id) {
    return this.#chat.live(id) ?? this.#store.load(id);
  }

  /**
   * Store conversations; false, with a toast, if the browser rejects it.
   *
   * @param {...Conversation} conversations
   */
  async save(...conversations) {
    const isKept = await this.#try(this.#store.save(conversations));
    await this.refresh();
    return isKept;
  }

  /** Update the list. */
  async refresh() {
    const heads = await this.#store.heads();
    const listed = heads.filter(({ id }) => this.#found?.has(id) ?? true);
    this.sidebar.show(listed, this.#chat.shown());
    return heads;
  }

  /** @param {string} words */
  async #search(words) {
    this.#found = words ? await this.#store.search(words) : null;
    await this.refresh();
  }

  /** @param {Head} head */
  async #rename({ id, title }) {
    const input = h("input", { value: title, maxLength: TITLE_LENGTH, "aria-label": "Title", autocomplete: "off" });
    const chosen = await dialog({
      title: "Rename the conversation",
      body: input,
      actions: [
        { label: "Cancel", value: "" },
        { label: "Rename", value: "yes", kind: "primary" },
      ],
    });
    const conversation = chosen ? await this.load(id) : undefined;
    if (!conversation) return;
    conversation.title = input.value.trim();
    await this.save(conversation);
  }

  /** @param {Head} head */
  async #remove({ id, title }) {
    const conversation = await this.load(id);
    this.#chat.removed(id);
    await this.#try(this.#store.remove(id));
    await this.refresh();
    if (!conversation) return;
    const undo = () => void this.save(conversation).then(() => this.#chat.open(id));
    toast(`Deleted “${title}”.`, "info", { label: "Undo", act: undo });
  }

  async #export() {
    const found = await Promise.all((await this.#store.heads()).map(({ id }) => this.load(id)));
    this.#saveAsFile(found.filter((one) => one !== undefined));
  }

  /** @param {Head} head */
  async #exportOne({ id }) {
    const conversation = await this.load(id);
    if (conversation) this.#saveAsFile([conversation]);
  }

  /** @param {Conversation[]} conversations */
  #saveAsFile(conversations) {
    if (!conversations.length) {
      toast("There is nothing to export yet.");
      return;
    }
    const now = new Date();
    const what = conversations.length === 1 ? titleOf(conversations[0]) : "conversations";
    saveFile(`welldone-${what.slice(0, 40)}-${now.toISOString().slice(0, 10)}.json`, write(conversations, now));
  }

  async #import() {
    const file = await pick(".json,application/json");
    const data = file && (await readFile(file, MAX_BYTES));
    if (!data) return;
    try {
      const conversations = read(new TextDecoder().decode(data));
      if (!(await this.save(...conversations))) return;
      await this.#chat.open(conversations[0].id);
      toast(conversations.length === 1 ? "One conversation imported." : `${count(conversations.length)} imported.`);
    } catch (error) {
      if (!(error instanceof TransferError)) throw error;
      toast(`${file.name} was not imported. ${error.message}`, "error");
    }
  }

  /** @param {Promise<void>} work */
  async #try(work) {
    try {
      await work;
      return true;
    } catch (error) {
      if (!(error instanceof StoreError)) throw error;
      toast(error.message, "error");
      return false;
    }
  }
}
