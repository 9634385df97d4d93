// The choice of presets in the settings panel.

import { dialog, toast } from "../dialog.js";
import { fill, h } from "../dom.js";
import { visible } from "../text.js";
import {
  defaultPreset, MAX_NAME, MAX_PRESETS, presets, removePreset, savePreset, setDefaultPreset, withPreset,
} from "./presets.js";

/** @import { Conversation } from "./conversation.js" */

export class PresetBar {
  #changed;
  /** @type {Conversation | null} */
  #conversation = null;
  #choice = h("select", { id: "setting-preset" });
  #delete = h("button", { class: "mini", on: { click: () => this.#remove() } }, "Delete");
  #isDefault = h("input", { type: "checkbox", id: "setting-default" });
  #default = h("div", { class: "preset-default" }, this.#isDefault,
    h("label", { for: "setting-default" }, "Use for new conversations"));

  /** @param {() => void} changed called when the settings of the conversation have changed */
  constructor(changed) {
    this.#changed = changed;
    this.#choice.addEventListener("change", () => this.#apply());
    this.#isDefault.addEventListener("change", () =>
      setDefaultPreset(this.#isDefault.checked ? this.#choice.value : ""));
    this.element = h(
      "div",
      { class: "field wide" },
      h("label", { for: this.#choice.id }, "Preset"),
      this.#choice,
      h("div", { class: "preset-buttons" },
        h("button", { class: "mini", on: { click: () => void this.#save() } }, "Save as preset"), this.#delete),
      this.#default,
    );
    this.#fill("");
  }

  /** @param {Conversation} conversation */
  show(conversation) {
    this.#conversation = conversation;
    const { system, options } = conversation;
    // Select the preset whose settings the conversation has.
    const same = presets().find((one) => one.system === system && isSame(one.options, options));
    this.#fill(same?.name ?? "");
  }

  /** @param {string} chosen */
  #fill(chosen) {
    fill(this.#choice, h("option", { value: "" }, "none"),
      presets().map(({ name }) => h("option", { value: name }, visible(name))));
    this.#choice.value = chosen;
    this.#delete.hidden = this.#default.hidden = this.#choice.value === "";
    this.#isDefault.checked = this.#choice.value !== "" && this.#choice.value === defaultPreset();
  }

  #apply() {
    const conversation = this.#conversation;
    if (!conversation) return;
    const { system, options } = conversation;
    const chosen = this.#choice.value;
    if (chosen) withPreset(conversation, chosen);
    else Object.assign(conversation, { system: "", options: {} });
    this.#changed();
    const undo = () => {
      Object.assign(conversation, { system, options });
      this.#changed();
    };
    toast(chosen ? `The settings are those of “${chosen}”.` : "The settings are empty.", "info",
      { label: "Undo", act: undo });
  }

  async #save() {
    const name = h("input", {
      value: this.#choice.value, maxLength: MAX_NAME, "aria-label": "Name", autocomplete: "off",
    });
    const error = h("p", { class: "error", role: "alert" });
    const conversation = this.#conversation;
    const chosen = await dialog({
      title: "Save the settings as a preset",
      body: [h("p", { class: "soft" }, "System prompt and settings, in this browser. The same name replaces a preset."),
        name, error],
      actions: [
        { label: "Cancel", value: "" },
        { label: "Save", value: "save", kind: "primary" },
      ],
      accept: (value) => {
        error.textContent = name.value.trim() ? "" : "A preset needs a name.";
        return value !== "save" || name.value.trim() !== "";
      },
    });
    if (chosen !== "save" || !conversation) return;
    const { system, options } = conversation;
    if (!savePreset({ name: name.value.trim(), system, options: { ...options } })) {
      toast(`There are ${MAX_PRESETS} presets already: delete one first.`, "error");
    }
    if (conversation === this.#conversation) this.show(conversation);
  }

  #remove() {
    removePreset(this.#choice.value);
    this.#fill("");
    this.#choice.focus();
  }
}

/**
 * @param {Record<string, string>} one
 * @param {Record<string, string>} other
 */
function isSame(one, other) {
  const names = Object.keys(one);
  return names.length === Object.keys(other).length && names.every((name) => one[name] === other[name]);
}
