// The list of chat models, and the selected one.

import { fill, h } from "../dom.js";
import { key, keyNews, mayAskAgain } from "../key.js";
import { recall, remember } from "../local.js";
import { visible } from "../text.js";

/**
 * @typedef {object} Listed a model as the server lists it
 * @property {string} id
 * @property {string} [type]
 * @property {string[]} [capabilities]
 * @property {{input_modalities?: string[]}} [architecture]
 * @property {{value?: string}} [status]
 */

export class ModelPicker {
  #page;
  #changed;
  #select;
  #trouble = h("span", { class: "models-trouble", hidden: true });
  /** @type {Listed[]} */
  #models = [];
  /** The model to select when the list arrives. */
  #wanted;
  #place;
  /** Name of the preference with the model used last. */
  #picked;

  /**
   * @param {Page} page
   * @param {() => void} changed
   * @param {{id?: string, label?: string, isLabelShown?: boolean, place?: number}} [options] `place`: of the model
   *   in the list that is selected until the user selects one
   */
  constructor(page, changed, { id = "model", label = "Model", isLabelShown = false, place = 0 } = {}) {
    this.#place = place;
    this.#picked = `welldone.${id}`;
    this.#wanted = recall(this.#picked) ?? "";
    this.#page = page;
    this.#changed = changed;
    this.#select = h("select", { id, disabled: true });
    // Another key may see other models. While the first list is pending, it is requested with the new key anyway.
    keyNews.addEventListener("change", () => {
      const isAwaited = !this.#models.length && this.#trouble.hidden;
      if (key() !== null && !isAwaited) void this.refresh();
    });
    this.#select.addEventListener("change", () => this.#pick(this.#select.value));
    this.element = h(
      "div",
      { class: isLabelShown ? "field" : "models" },
      h("label", { for: id, class: isLabelShown ? "" : "sr-only" }, label),
      this.#select,
      this.#trouble,
    );
  }

  /** Name of the selected model; empty if none. */
  get model() {
    return this.#models.some(({ id }) => id === this.#select.value) ? this.#select.value : "";
  }

  /** Whether the server must load it first. */
  get isCold() {
    return !isLoaded(this.#models.find(({ id }) => id === this.model));
  }

  /** Whether it may accept images: false only if the server knows that it does not. */
  get maySee() {
    return maySee(this.#models.find(({ id }) => id === this.model));
  }

  /** Request the list of models. */
  async refresh() {
    if (!this.#models.length) fill(this.#select, h("option", {}, "Loading the models…"));
    try {
      const { data } = await this.#page.json("v1/models");
      this.#show(data.filter(canChat));
    } catch (error) {
      this.#fail(error instanceof Error ? error.message : String(error));
    }
  }

  /**
   * Select a model, now or when the list arrives, if the server has it.
   *
   * @param {string} id
   */
  choose(id) {
    if (!this.#models.length && id) this.#wanted = id;
    if (!this.#models.some((model) => model.id === id)) return;
    this.#select.value = id;
    this.#changed();
  }

  /** @param {Listed[]} models */
  #show(models) {
    const wanted = this.model || this.#wanted;
    this.#models = models;
    this.#trouble.hidden = true;
    this.#select.disabled = !models.length;
    fill(this.#select, models.length ? models.map(optionOf) : h("option", {}, "No chat models"));
    const chosen = models.find(({ id }) => id === wanted) ?? models[this.#place];
    if (chosen) this.#select.value = chosen.id;
    this.#changed();
  }

  /** @param {string} why */
  #fail(why) {
    if (!this.#models.length) fill(this.#select, h("option", {}, "No models"));
    const again = h("button", { class: "mini" }, "Try again");
    again.addEventListener("click", () => {
      mayAskAgain();
      void this.refresh();
    });
    fill(this.#trouble, h("span", { role: "alert" }, visible(why)), again);
    this.#trouble.hidden = false;
  }

  /** @param {string} id */
  #pick(id) {
    remember(this.#picked, id);
    this.#changed();
  }
}

/** @param {Listed} model */
function optionOf(model) {
  return h("option", { value: model.id }, visible(model.id) + (isLoaded(model) ? "" : " (not loaded)"));
}

/**
 * Models without a state, as of upstreams, count as loaded.
 *
 * @param {Listed | undefined} model
 */
function isLoaded(model) {
  return (model?.status?.value ?? "loaded") === "loaded";
}

/** @param {Listed} model */
function canChat({ type, capabilities }) {
  return type !== "embeddings" && (!Array.isArray(capabilities) || isChatty(capabilities));
}

/** @param {string[]} capabilities */
function isChatty(capabilities) {
  return capabilities.includes("completion") || !["embedding", "rerank"].some((one) => capabilities.includes(one));
}

/** @param {Listed | undefined} model */
function maySee(model) {
  const { capabilities, architecture } = model ?? {};
  const inputs = architecture?.input_modalities;
  if (Array.isArray(inputs)) return inputs.includes("image");
  return !Array.isArray(capabilities) || ["vision", "multimodal"].some((one) => capabilities.includes(one));
}
