// Loads and unloads models by hand.

import { ApiError } from "../api.js";
import { confirm, toast } from "../dialog.js";

const BUSY = 409; // the model answers somebody

export class Loader {
  #page;
  #changed;
  /** Models of which something was asked that is not answered yet. */
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
   * Who would end somebody's answers is asked whether he means it.
   *
   * @param {string} model
   */
  async unload(model) {
    const refusal = await this.#ask("models/unload", { model });
    if (refusal?.status !== BUSY) return;
    const text = "Answers that it gives now would end with an error.";
    if (await confirm(`Unload ${model}?`, text, "Unload")) await this.#ask("models/unload", { model, force: true });
  }

  /**
   * @param {string} path
   * @param {{model: string, force?: boolean}} body
   * @returns {Promise<ApiError | null>} how the server refused it
   */
  async #ask(path, body) {
    if (this.pending.has(body.model)) return null;
    this.pending.add(body.model);
    this.#changed();
    try {
      await this.#page.api(path, { json: body });
      return null;
    } catch (error) {
      const refusal = error instanceof ApiError ? error : null;
      if (refusal?.status !== BUSY) toast(refusal?.message ?? "The server does not answer.", "error");
      return refusal;
    } finally {
      this.pending.delete(body.model);
      this.#changed();
    }
  }
}
