// Loading and unloading of models.

import { ApiError } from "../api.js";
import { confirm, toast } from "../dialog.js";

const BUSY = 409; // the model has running requests

export class Loader {
  #page;
  #changed;
  /** Models with a pending request. */
  pending = /** @type {Set<string>} */ (new Set());

  /**
   * @param {Page} page
   * @param {() => void} changed
   */
  constructor(page, changed) {
    this.#page = page;
    this.#changed = changed;
  }

  /** @param {string} model */
  async load(model) {
    await this.#ask("models/load", { model });
  }

  /**
   * Asks for confirmation if running requests would fail.
   *
   * @param {string} model
   */
  async unload(model) {
    const failure = await this.#ask("models/unload", { model });
    if (failure?.status !== BUSY) return;
    const text = "Running requests would end with an error.";
    if (await confirm(`Unload ${model}?`, text, "Unload")) await this.#ask("models/unload", { model, force: true });
  }

  /**
   * @param {string} path
   * @param {{model: string, force?: boolean}} body
   * @returns {Promise<ApiError | null>} error of the server
   */
  async #ask(path, body) {
    if (this.pending.has(body.model)) return null;
    this.pending.add(body.model);
    this.#changed();
    try {
      await this.#page.api(path, { json: body });
      return null;
    } catch (error) {
      const failure = error instanceof ApiError ? error : null;
      if (failure?.status !== BUSY) toast(failure?.message ?? "The server does not respond.", "error");
      return failure;
    } finally {
      this.pending.delete(body.model);
      this.#changed();
    }
  }
}
