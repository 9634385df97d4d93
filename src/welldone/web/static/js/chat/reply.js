// The <article> of an answer. A stored answer is added at once, a streaming one in pieces.

import { badge } from "../badge.js";
import { h } from "../dom.js";
import { count, duration, rate } from "../format.js";
import { Live } from "../markdown/index.js";
import { visible } from "../text.js";
import { CallCard } from "./call.js";
import { LiveJson } from "./livejson.js";
import { makeArticle } from "./message.js";

/** @import { News } from "./answer.js" */
/** @import { AnswerFacts, Message } from "./conversation.js" */
/** @import { Acts } from "./message.js" */

const LENGTH_HINT = "The answer was cut: it reached Max tokens, or the context is full.";

export class Reply {
  #message;
  #facts;
  #text;
  #thoughts = new Thoughts();
  #refusal = h("p", { class: "refusal", hidden: true });
  /** @type {CallCard[]} */
  #cards = [];
  #calls = h("div", { class: "calls" });
  #results = h("button", { class: "primary", hidden: true }, "Send results");
  #trouble = h("div");
  #hasHeard = false;
  #typing = h("span", { class: "typing", "aria-hidden": "true", hidden: true });

  /**
   * @param {Message} message
   * @param {Acts} acts
   */
  constructor(message, acts) {
    const { element, body, facts } = makeArticle(message, acts);
    const text = h("div", { class: "answer-text" });
    this.element = element;
    this.#message = message;
    this.#facts = facts;
    this.#text = message.answer?.is_json ? new LiveJson(text) : new Live(text);
    body.append(text);
    body.before(this.#thoughts.element);
    body.after(this.#refusal, this.#calls, this.#results, this.#typing, this.#trouble);
    this.#results.addEventListener("click", () => acts.sendResults(this.#cards.map(({ result }) => result)));
  }

  /** Start streaming. */
  begin() {
    this.element.classList.add("is-running");
    this.#typing.hidden = false;
  }

  /** @param {News} news */
  hear({ content, reasoning, refusal, calls }) {
    if (content || reasoning || refusal || calls.length) this.#hasHeard = true;
    if (reasoning) this.#thoughts.hear(reasoning);
    if (content) this.#text.append(content);
    if (refusal) {
      this.#refusal.hidden = false;
      this.#refusal.append(visible(refusal));
    }
    for (const { place, name, piece } of calls) this.#card(place).hear(name, piece);
  }

  /** End streaming, complete or not. */
  end() {
    this.element.classList.remove("is-running");
    this.#typing.hidden = true;
    this.#text.end();
    for (const card of this.#cards) card.end();
    const { answer } = this.#message;
    this.#thoughts.end(answer?.thought_ms ?? null);
    if (!answer) return;
    this.#facts.textContent = factsLine(answer);
    this.#trouble.replaceChildren(...troubles(answer, this.#hasHeard));
  }

  /** @param {boolean} isWaiting whether its tool calls wait for results */
  setWaiting(isWaiting) {
    for (const card of this.#cards) card.setWaiting(isWaiting);
    this.#results.hidden = !isWaiting;
  }

  /** Focus the first result input. */
  focusResult() {
    this.#cards[0]?.focus();
  }

  /** @param {number} place */
  #card(place) {
    for (let next = this.#cards.length; next <= place; next += 1) {
      const card = new CallCard();
      this.#cards.push(card);
      this.#calls.append(card.element);
    }
    return this.#cards[place];
  }
}

/**
 * The article of a stored answer.
 *
 * @param {Message} message
 * @param {Acts} acts
 */
export function makeReply(message, acts) {
  const reply = new Reply(message, acts);
  const calls = (message.tool_calls ?? []).map(({ function: { name, arguments: piece } }, place) => {
    return { place, name, piece };
  });
  const { content, reasoning_content: reasoning = "", refusal = "" } = message;
  reply.hear({ content, reasoning, refusal, calls });
  reply.end();
  return reply;
}

/** The reasoning, collapsed. */
class Thoughts {
  #summary = h("summary", {}, "Reasoning");
  #time = h("span", { class: "soft" });
  #text = h("div", { class: "thoughts-text" });
  /** @type {Live | null} made with the first thought: most answers have none */
  #live = null;

  constructor() {
    this.#summary.append(this.#time);
    this.element = h("details", { class: "thoughts", hidden: true }, this.#summary, this.#text);
  }

  /** @param {string} piece */
  hear(piece) {
    if (!this.#live) {
      this.#live = new Live(this.#text);
      this.element.hidden = false;
      this.#time.textContent = " · thinking…";
    }
    this.#live.append(piece);
  }

  /** @param {number | null} ms */
  end(ms) {
    this.#live?.end();
    this.#time.textContent = ms === null ? "" : ` · thought for ${(ms / 1000).toFixed(1)} s`;
  }
}

/** @param {AnswerFacts} facts */
function factsLine({ model, completion_tokens, tokens_per_s, ttft_ms, finish_reason }) {
  const said = [
    visible(model),
    completion_tokens !== null && `${count(completion_tokens)} tokens`,
    tokens_per_s !== null && `${rate(tokens_per_s)} tokens/s`,
    ttft_ms !== null && `first token after ${duration(ttft_ms)}`,
    finish_reason !== null && !["stop", "length", "tool_calls"].includes(finish_reason) && visible(finish_reason),
  ];
  return said.filter(Boolean).join(" · ");
}

/**
 * The errors and warnings of an answer.
 *
 * @param {AnswerFacts} facts
 * @param {boolean} hasBegun
 */
function troubles({ outcome, error, finish_reason }, hasBegun) {
  const shown = [];
  if (outcome === "stopped") shown.push(h("p", { class: "mark" }, badge("stopped", "warn")));
  if (outcome === "whole" && finish_reason === "length") {
    shown.push(h("p", { class: "mark" }, badge("length", "warn"), " ", LENGTH_HINT));
  }
  if (outcome === "broken") {
    const what = h("strong", {}, hasBegun ? "The answer was interrupted. " : "There is no answer. ");
    shown.push(h("div", { class: "trouble", role: "alert" }, what, visible(error ?? "The server gave no reason.")));
  }
  return shown;
}
