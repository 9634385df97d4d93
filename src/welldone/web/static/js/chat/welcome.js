// The start screen of an empty conversation.

import { fill, h } from "../dom.js";
import { visible } from "../text.js";

const EXAMPLES = [
  "Explain server-sent events in three sentences.",
  "Write a Python function that counts the words of a text.",
  "Give me a table of three planets and their moons.",
];

/** @param {(text: string) => void} send */
export function makeWelcome(send) {
  const name = h("strong");
  const examples = EXAMPLES.map((text) =>
    h("button", { class: "example", on: { click: () => send(text) } }, text),
  );
  const element = h(
    "div",
    { class: "welcome" },
    h("h2", {}, "Talk to ", name),
    h("p", { class: "soft" }, "Try one of these, or write your own message below."),
    h("div", { class: "examples" }, examples),
    h("p", { class: "soft small" }, "The inspector shows each frame of the stream as it arrives."),
  );
  /** @param {string} model */
  const setModel = (model) => fill(name, visible(model || "a model"));
  setModel("");
  return { element, setModel };
}
