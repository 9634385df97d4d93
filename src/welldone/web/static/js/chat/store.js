// Storage of conversations: IndexedDB, or memory if it is not available (as in private windows).

import { titleOf } from "./conversation.js";

/** @import { Conversation } from "./conversation.js" */

/**
 * @typedef {{id: string, title: string, updated_at: number}} Head list entry of a conversation
 *
 * @typedef {object} Store
 * @property {boolean} isLasting whether it is still there when the page comes again
 * @property {() => Promise<Head[]>} heads the newest first
 * @property {(id: string) => Promise<Conversation | undefined>} load
 * @property {(conversations: Conversation[]) => Promise<void>} save all of them or none
 * @property {(id: string) => Promise<void>} remove
 * @property {(words: string) => Promise<Set<string>>} search the ids of those whose text has these words
 */

const NAME = "welldone";
const VERSION = 1;
const HEADS = "heads";
const WHOLE = "conversations";

/** Storage is full or not allowed. */
export class StoreError extends Error {}

/** @returns {Promise<Store>} */
export async function openStore() {
  try {
    return new BrowserStore(await openDatabase());
  } catch {
    // Browsers report a missing IndexedDB in different ways.
    return new MemoryStore();
  }
}

/** @returns {Promise<IDBDatabase>} */
function openDatabase() {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open(NAME, VERSION);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore(HEADS, { keyPath: "id" });
      opening.result.createObjectStore(WHOLE, { keyPath: "id" });
    };
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = () => reject(opening.error);
    opening.onblocked = () => reject(new StoreError("Another tab has an older version open."));
  });
}

/** @implements {Store} */
class BrowserStore {
  isLasting = true;
  #database;

  /** @param {IDBDatabase} database */
  constructor(database) {
    this.#database = database;
    // Do not block an upgrade by a newer version of the page in another tab.
    database.onversionchange = () => database.close();
  }

  /** @returns {Promise<Head[]>} */
  async heads() {
    return newestFirst(await done(this.#begin("readonly").objectStore(HEADS).getAll()));
  }

  /**
   * @param {string} id
   * @returns {Promise<Conversation | undefined>}
   */
  load(id) {
    return done(this.#begin("readonly").objectStore(WHOLE).get(id));
  }

  /** @param {Conversation[]} conversations */
  async save(conversations) {
    const work = this.#begin("readwrite");
    for (const one of conversations) {
      work.objectStore(HEADS).put(headOf(one));
      work.objectStore(WHOLE).put(one);
    }
    await committed(work);
  }

  /** @param {string} id */
  async remove(id) {
    const work = this.#begin("readwrite");
    work.objectStore(HEADS).delete(id);
    work.objectStore(WHOLE).delete(id);
    await committed(work);
  }

  /** @param {string} words */
  search(words) {
    /** @type {Set<string>} */
    const found = new Set();
    const walk = this.#begin("readonly").objectStore(WHOLE).openCursor();
    return new Promise((resolve, reject) => {
      walk.onerror = () => reject(storeError(walk.error));
      walk.onsuccess = () => {
        const cursor = walk.result;
        if (!cursor) return resolve(found);
        if (hasWords(cursor.value, words)) found.add(cursor.value.id);
        cursor.continue();
      };
    });
  }

  /** @param {IDBTransactionMode} mode */
  #begin(mode) {
    try {
      return this.#database.transaction([HEADS, WHOLE], mode);
    } catch (error) {
      throw storeError(error);
    }
  }
}

/** @implements {Store} */
export class MemoryStore {
  isLasting = false;
  /** @type {Map<string, Conversation>} */
  #kept = new Map();

  async heads() {
    return newestFirst([...this.#kept.values()].map(headOf));
  }

  /** @param {string} id */
  async load(id) {
    return this.#kept.get(id);
  }

  /** @param {Conversation[]} conversations */
  async save(conversations) {
    for (const one of conversations) this.#kept.set(one.id, one);
  }

  /** @param {string} id */
  async remove(id) {
    this.#kept.delete(id);
  }

  /** @param {string} words */
  async search(words) {
    return new Set([...this.#kept.values()].filter((one) => hasWords(one, words)).map(({ id }) => id));
  }
}

/**
 * @param {Conversation} conversation
 * @returns {Head}
 */
function headOf(conversation) {
  return { id: conversation.id, title: titleOf(conversation), updated_at: conversation.updated_at };
}

/** @param {Head[]} heads */
function newestFirst(heads) {
  return heads.sort((one, other) => other.updated_at - one.updated_at);
}

/**
 * @param {Conversation} conversation
 * @param {string} words
 */
function hasWords(conversation, words) {
  const wanted = words.toLowerCase();
  const texts = [titleOf(conversation), conversation.system, ...conversation.messages.map(({ content }) => content)];
  return texts.some((text) => text.toLowerCase().includes(wanted));
}

/**
 * @template Result
 * @param {IDBRequest<Result>} request
 * @returns {Promise<Result>}
 */
function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(storeError(request.error));
  });
}

/**
 * @param {IDBTransaction} work
 * @returns {Promise<void>}
 */
function committed(work) {
  return new Promise((resolve, reject) => {
    work.oncomplete = () => resolve();
    work.onabort = () => reject(storeError(work.error));
  });
}

/** @param {unknown} error */
function storeError(error) {
  const isFull = error instanceof DOMException && error.name === "QuotaExceededError";
  return new StoreError(
    isFull
      ? "The browser storage is full. Export and delete some conversations."
      : "The browser did not store this conversation. Export it before you leave.",
  );
}
