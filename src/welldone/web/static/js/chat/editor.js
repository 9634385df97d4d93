// Editor of a message.

import { h } from "../dom.js";

/**
 * @param {string} text
 * @param {string} label of the save button
 * @param {{save: (text: string) => void, cancel: () => void}} acts
 */
export function makeEditor(text, label, { save, cancel }) {
  const rows = Math.min(16, text.slice(0, 2_000).split("\n").length + 1);
  const box = h("textarea", { "aria-label": "Edited message", rows, value: text });
  const keep = () => save(box.value);
  /** @param {KeyboardEvent} event */
  const onKey = (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape") cancel();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) keep();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  box.addEventListener("keydown", onKey);
  const element = h(
    "div",
    { class: "editor" },
    box,
    h(
      "div",
      { class: "editor-buttons" },
      h("button", { class: "primary", title: "Ctrl+Enter", on: { click: keep } }, label),
      h("button", { title: "Esc", on: { click: cancel } }, "Cancel"),
    ),
  );
  return { element, focus: () => box.focus() };
}
