// One running answer: sends the request, updates the article, saves the result.

import { Exchange } from "../exchange.js";
import { Answer } from "./answer.js";
import { requestBody } from "./conversation.js";
import { Reply } from "./reply.js";

/** @import { Frame } from "../sse.js" */
/** @import { AnswerFacts, Conversation, Message } from "./conversation.js" */
/** @import { Acts } from "./message.js" */

const SAVE_MS = 2_000; // at most this much is lost in a crash
const MAX_CHARACTERS = 16 * 2 ** 20; // of an answer in memory
const TOO_LONG = "The answer exceeds the limit of this page and was stopped.";
const NO_END = "The stream ended without a finish_reason.";

export class Run {
  #answer = new Answer();
  #exchange;
  #model;
  #isTooLong = false;
  /** @type {Promise<AnswerFacts["outcome"]> | null} how it ended, when it has; null: it has not begun */
  settled = null;

  /**
   * @param {Page} page
   * @param {Conversation} conversation
   * @param {string} model
   * @param {Acts} acts
   * @param {Message} message of the answer, which is added to the conversation
   */
  constructor(page, conversation, model, acts, message) {
    this.conversation = conversation;
    this.#model = model;
    this.#exchange = new Exchange(page, "v1/chat/completions", requestBody(conversation, model));
    this.message = message;
    this.message.answer = this.#facts("stopped", null);
    conversation.messages.push(this.message);
    this.reply = new Reply(this.message, acts);
  }

  /**
   * Run until the end of the answer. Never throws.
   *
   * @param {() => void} save stores the conversation
   * @returns {Promise<AnswerFacts["outcome"]>}
   */
  go(save) {
    this.settled ??= this.#go(save);
    return this.settled;
  }

  stop() {
    this.#exchange.stop();
  }

  /** @param {() => void} save */
  async #go(save) {
    this.#exchange.addEventListener("frame", (event) => this.#hear(/** @type {CustomEvent<Frame>} */ (event).detail));
    const saving = setInterval(() => {
      this.#keep(this.#facts("stopped", null));
      save();
    }, SAVE_MS);
    this.reply.begin();
    await this.#exchange.run();
    clearInterval(saving);
    const facts = this.#end();
    this.#keep(facts);
    this.reply.end();
    save();
    return facts.outcome;
  }

  /** @param {Frame} frame */
  #hear(frame) {
    this.reply.hear(this.#answer.feed(frame.json, frame.at));
    if (this.#answer.size <= MAX_CHARACTERS) return;
    this.#isTooLong = true;
    this.stop();
  }

  /** The outcome. */
  #end() {
    const { outcome, error } = this.#exchange;
    if (this.#isTooLong) return this.#facts("broken", TOO_LONG);
    if (outcome === "stopped") return this.#facts("stopped", null);
    if (outcome === "failed") return this.#facts("broken", error);
    if (this.#answer.error !== null) return this.#facts("broken", this.#answer.error);
    return this.#answer.finishReason === null ? this.#facts("broken", NO_END) : this.#facts("whole", null);
  }

  /** @param {AnswerFacts} facts */
  #keep(facts) {
    const { content, reasoning, refusal, calls } = this.#answer;
    this.message.content = content;
    this.message.answer = facts;
    if (reasoning) this.message.reasoning_content = reasoning;
    if (refusal) this.message.refusal = refusal;
    if (calls.length) this.message.tool_calls = calls;
  }

  /**
   * @param {AnswerFacts["outcome"]} outcome
   * @param {string | null} error
   * @returns {AnswerFacts}
   */
  #facts(outcome, error) {
    const answer = this.#answer;
    return {
      model: this.#model,
      outcome,
      error,
      finish_reason: answer.finishReason,
      is_json: "response_format" in this.#exchange.body,
      ttft_ms: answer.firstAt,
      duration_ms: this.#exchange.endedAt,
      thought_ms: answer.thoughtMs,
      tokens_per_s: answer.tokensPerSecond,
      prompt_tokens: answer.promptTokens,
      completion_tokens: answer.completionTokens,
    };
  }
}
