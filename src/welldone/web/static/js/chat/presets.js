// Presets: named system prompts and request settings, in the browser's preferences. One may be the default of new
// conversations.

import { recall, remember } from "../local.js";
import { isRecord } from "../record.js";
import { FIELDS } from "./options.js";

/** @import { Conversation } from "./conversation.js" */
/** @import { Options } from "./options.js" */

/** @typedef {{name: string, system: string, options: Options}} Preset */

const STORED = "welldone.presets";
const DEFAULT = "welldone.default-preset";
export const MAX_PRESETS = 50; // more are not found in a list
export const MAX_NAME = 60;

/**
 * All presets, by name. Stored values are checked: an older version may have written them.
 *
 * @returns {Preset[]}
 */
export function presets() {
  try {
    const stored = /** @type {unknown} */ (JSON.parse(recall(STORED) ?? "[]"));
    const found = Array.isArray(stored) ? stored.flatMap(readPreset) : [];
    return found.sort((one, other) => one.name.localeCompare(other.name)).slice(0, MAX_PRESETS);
  } catch {
    return [];
  }
}

/**
 * Add a preset, or replace the one of its name. Returns whether there was room.
 *
 * @param {Preset} preset
 */
export function savePreset(preset) {
  const others = presets().filter(({ name }) => name !== preset.name);
  if (others.length >= MAX_PRESETS) return false;
  remember(STORED, JSON.stringify([...others, preset]));
  return true;
}

/** @param {string} name */
export function removePreset(name) {
  remember(STORED, JSON.stringify(presets().filter((preset) => preset.name !== name)));
  if (defaultPreset() === name) setDefaultPreset("");
}

/** Name of the preset of new conversations; empty: none. */
export function defaultPreset() {
  return recall(DEFAULT) ?? "";
}

/** @param {string} name */
export function setDefaultPreset(name) {
  remember(DEFAULT, name);
}

/**
 * A conversation with the settings of a preset, if it exists.
 *
 * @param {Conversation} conversation
 * @param {string} wanted
 */
export function withPreset(conversation, wanted) {
  const found = presets().find(({ name }) => name === wanted);
  if (found) Object.assign(conversation, { system: found.system, options: { ...found.options } });
  return conversation;
}

/**
 * @param {unknown} one
 * @returns {Preset[]}
 */
function readPreset(one) {
  if (!isRecord(one) || typeof one.name !== "string" || !one.name || typeof one.system !== "string") return [];
  const stored = isRecord(one.options) ? one.options : {};
  /** @type {Options} */
  const options = {};
  for (const { name } of FIELDS) {
    const value = Object.hasOwn(stored, name) ? stored[name] : undefined;
    if (typeof value === "string") options[name] = value;
  }
  return [{ name: one.name.slice(0, MAX_NAME), system: one.system, options }];
}
