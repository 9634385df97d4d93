// The settings panel: system prompt and request parameters of a conversation.

import { badge } from "../badge.js";
import { fill, h } from "../dom.js";
import { FIELDS, readOptions } from "./options.js";
import { PresetBar } from "./presetbar.js";

/** @import { Conversation } from "./conversation.js" */
/** @import { Field } from "./options.js" */

export class Settings {
  #changed;
  /** @type {Conversation | null} */
  #conversation = null;
  #system = h("textarea", { id: "setting-system", rows: 4, placeholder: "You are a helpful assistant." });
  /** @type {Map<string, {input: HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement, error: HTMLElement}>} */
  #inputs = new Map();
  #presets = new PresetBar(() => this.#changedByPreset());

  /** @param {() => void} changed */
  constructor(changed) {
    this.#changed = changed;
    this.button = h("button", { "aria-label": "Settings", "aria-controls": "settings" });
    this.button.setAttribute("aria-expanded", "false");
    this.button.addEventListener("click", () => (this.isOpen ? this.close() : this.open()));
    this.#system.addEventListener("input", () => this.#typedSystem());
    const close = h("button", { class: "quiet", "aria-label": "Close the settings" }, "✕");
    close.addEventListener("click", () => this.close());
    this.element = h(
      "section",
      { id: "settings", class: "settings", "aria-label": "Settings", hidden: true },
      h("div", { class: "settings-head" }, h("h2", {}, "Settings"), close),
      h("p", { class: "soft small" }, "For this conversation. Empty settings are not sent."),
      this.#presets.element,
      h("div", { class: "field wide" }, h("label", { for: this.#system.id }, "System prompt"), this.#system),
      FIELDS.map((field) => this.#makeField(field)),
    );
  }

  get isOpen() {
    return !this.element.hidden;
  }

  /** @param {string} [name] of the field to focus */
  open(name) {
    this.element.hidden = false;
    this.button.setAttribute("aria-expanded", "true");
    (this.#inputs.get(name ?? "")?.input ?? this.#system).focus();
  }

  close() {
    this.element.hidden = true;
    this.button.setAttribute("aria-expanded", "false");
    this.button.focus();
  }

  /** @param {Conversation} conversation */
  show(conversation) {
    this.#conversation = conversation;
    this.#system.value = conversation.system;
    for (const [name, { input }] of this.#inputs) input.value = conversation.options[name] ?? "";
    this.#presets.show(conversation);
    this.#check();
  }

  #changedByPreset() {
    if (this.#conversation) this.show(this.#conversation);
    this.#changed();
  }

  #typedSystem() {
    if (!this.#conversation) return;
    this.#conversation.system = this.#system.value;
    this.#check();
    this.#changed();
  }

  /** @param {string} name */
  #typed(name) {
    const typed = this.#inputs.get(name)?.input.value ?? "";
    if (!this.#conversation) return;
    if (typed) this.#conversation.options[name] = typed;
    else delete this.#conversation.options[name];
    this.#check();
    this.#changed();
  }

  /** Show errors at their fields, and the number of settings set. */
  #check() {
    const { options, system } = this.#conversation ?? { options: {}, system: "" };
    const { errors } = readOptions(options);
    for (const [name, { input, error }] of this.#inputs) {
      error.textContent = errors[name] ?? "";
      input.setAttribute("aria-invalid", String(name in errors));
    }
    const set = Object.keys(options).length + (system ? 1 : 0);
    fill(this.button, "Settings", set > 0 && badge(set, "info"));
  }

  /** @param {Field} field */
  #makeField(field) {
    const id = `setting-${field.name}`;
    const error = h("div", { class: "error", id: `${id}-error` });
    const input = makeInput(field);
    input.id = id;
    input.setAttribute("aria-describedby", error.id);
    input.addEventListener("input", () => this.#typed(field.name));
    this.#inputs.set(field.name, { input, error });
    return h(
      "div",
      { class: field.isWide ? "field wide" : "field" },
      h("div", { class: "field-head" }, h("label", { for: id }, field.label), this.#makeExample(field, input)),
      input,
      error,
    );
  }

  /**
   * @param {Field} field
   * @param {HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement} input
   */
  #makeExample({ name, label, example }, input) {
    if (!example) return null;
    const put = () => {
      input.value = example;
      this.#typed(name);
      input.focus();
      if (input instanceof HTMLTextAreaElement) input.setSelectionRange(0, 0);
      input.scrollTop = 0;
    };
    const title = `Insert an example into ${label}`;
    return h("button", { class: "quiet mini", "aria-label": title, on: { click: put } }, "Example");
  }
}

/** @param {Field} field */
function makeInput({ kind, hint = "", choices = [] }) {
  switch (kind) {
    case "choice":
    case "flag":
      return h("select", {}, h("option", { value: "" }, "default"), choices.map((one) => h("option", {}, one)));
    case "tools":
    case "schema":
      return h("textarea", { rows: 6, class: "mono", spellcheck: false, placeholder: hint });
    case "lines":
      return h("textarea", { rows: 2, class: "mono", spellcheck: false, placeholder: hint });
    default:
      return h("input", { inputMode: "decimal", autocomplete: "off", placeholder: "default", title: hint });
  }
}
