// Lint of a captured stream, pasted or dropped: its findings, and the repaired stream.

import { ApiError } from "../api.js";
import { badge } from "../badge.js";
import { copyButton } from "../clipboard.js";
import { fill, h } from "../dom.js";
import { base64, pick, read, save } from "../files.js";
import { bytes, count } from "../format.js";
import { sizeOf } from "../sse.js";
import { visible } from "../text.js";
import { FrameView } from "./frames.js";
import { ruleItem } from "./ruleitem.js";
import { upstreamSource } from "./sources.js";

/** @import { Rules } from "../rules.js" */

/** The server's limit. */
const MAX_BYTES = 4 * 2 ** 20;
/** Links to frames per rule. */
const MAX_LINKS = 8;
/** Characters of a file in the text field: more makes browsers slow. The file itself is uploaded unchanged. */
const MAX_SHOWN = 200_000;
const ENDPOINTS = ["chat", "completions", "responses", "messages"];
const VERDICTS = /** @type {const} */ ({
  pass: { tone: "good", name: "Pass:", text: "no violations." },
  warn: { tone: "warn", name: "Warn:", text: "violations of advice only." },
  fail: { tone: "bad", name: "Fail:", text: "violations of rules that are not advice." },
});

/**
 * The exact capture: a text field would change its line ends.
 *
 * @typedef {{name: string, size: number, text?: string, base64?: string, request?: object}} Loaded
 */

export class LintView {
  #page;
  #rules;
  #text = h("textarea", { id: "lint-text", class: "mono", rows: 6, spellcheck: false,
    placeholder: "data: {\"choices\": … — paste a stream here, or drop a file" });
  #endpoint = h("select", {}, h("option", { value: "" }, "detect"),
    ENDPOINTS.map((name) => h("option", { value: name }, name)));
  #about = h("p", { class: "small soft", role: "status" });
  #output = h("div", { class: "lint-result" });
  #frames;
  #button = h("button", { class: "primary", on: { click: () => void this.#lint() } }, "Lint and fix");
  #saveButton = h("button", { disabled: true, on: { click: () => this.#save() } }, "Save fixed");
  /** @type {Loaded | null} */
  #loaded = null;
  /** @type {LintResult | null} */
  #result = null;
  /** Aborts the last request when a new one starts. */
  #abort = new AbortController();

  /**
   * @param {Page} page
   * @param {Rules} rules
   */
  constructor(page, rules) {
    this.#page = page;
    this.#rules = rules;
    this.#frames = new FrameView("Frames of the capture");
    this.#frames.element.hidden = true;
    this.#text.addEventListener("input", () => this.#typed());
    const openButton = h("button", { on: { click: () => void this.#pick() } }, "Open file");
    this.element = h(
      "div",
      { class: "insp-scroll lint-view" },
      h("label", { for: "lint-text" }, "Captured stream"),
      this.#text,
      h("div", { class: "lint-tools" }, this.#button, openButton, this.#saveButton,
        h("label", { class: "lint-endpoint" }, "Endpoint", this.#endpoint)),
      this.#about,
      this.#output,
      this.#frames.element,
    );
    this.#typed();
  }

  /** Paint again: the content was made while the panel was hidden. */
  update() {
    if (!this.#frames.element.hidden) this.#frames.update();
  }

  /** @param {File} file */
  async openFile(file) {
    const data = await read(file, MAX_BYTES);
    if (!data) return;
    this.#load({ name: file.name, size: data.length, base64: base64(data) }, new TextDecoder().decode(data));
    await this.#lint();
  }

  /** @param {CaptureFile} capture */
  async openCapture({ name, text, request }) {
    this.#load({ name, size: sizeOf(text), text, ...(request ? { request } : {}) }, text);
    await this.#lint();
  }

  /**
   * @param {Loaded} loaded
   * @param {string} text
   */
  #load(loaded, text) {
    this.#loaded = loaded;
    this.#button.disabled = false;
    this.#text.value = text.slice(0, MAX_SHOWN);
    const isCut = text.length > MAX_SHOWN;
    const cutText = isCut ? "; only its start is shown" : "";
    this.#setStatus(`${loaded.name}, ${bytes(loaded.size)}, is linted unchanged${cutText}.`);
  }

  async #pick() {
    const file = await pick();
    if (file) await this.openFile(file);
  }

  #typed() {
    this.#loaded = null;
    const size = sizeOf(this.#text.value);
    const limit = `at most ${bytes(MAX_BYTES)}`;
    const about = size ? `${bytes(size)} of ${limit}.` : `The output of curl, with or without headers; ${limit}.`;
    this.#setStatus(about, size > MAX_BYTES);
    this.#button.disabled = size === 0 || size > MAX_BYTES;
  }

  /**
   * @param {string} text
   * @param {boolean} [isError]
   */
  #setStatus(text, isError = false) {
    this.#about.textContent = visible(text);
    this.#about.classList.toggle("is-error", isError);
  }

  async #lint() {
    const loaded = this.#loaded ?? { name: "capture.sse", size: sizeOf(this.#text.value), text: this.#text.value };
    if (loaded.size > MAX_BYTES) {
      this.#setStatus(`${bytes(loaded.size)}: the limit is ${bytes(MAX_BYTES)}. Use welldone lint.`, true);
      return;
    }
    const { text, base64: data, request } = loaded;
    const endpoint = this.#endpoint.value || undefined;
    const body = { ...(data === undefined ? { capture: text } : { capture_base64: data }), endpoint, request };
    this.#abort.abort();
    this.#abort = new AbortController();
    const { signal } = this.#abort;
    try {
      this.#show(await this.#page.json("page/api/lint", { json: body, signal }));
    } catch (error) {
      if (signal.aborted) return;
      this.#clear();
      this.#setStatus(error instanceof ApiError ? error.message : "The server cannot be reached.", true);
    }
  }

  #clear() {
    this.#result = null;
    this.#saveButton.disabled = true;
    this.#frames.element.hidden = true;
    fill(this.#output);
  }

  /** @param {LintResult} result */
  #show(result) {
    this.#result = result;
    this.#saveButton.disabled = false;
    this.#frames.element.hidden = false;
    this.#frames.open(upstreamSource(() => result.steps));
    const { tone, name, text } = VERDICTS[result.verdict];
    const { findings, error } = result;
    fill(
      this.#output,
      h("p", { role: "status" },
        badge(name, tone), ` ${text} `,
        h("span", { class: "soft small" }, `Read as ${result.endpoint}, ${result.reply_kind}.`),
        copyButton("Copy fixed", () => result.fixed, "Copy fixed")),
      result.is_cut && h("p", { class: "small" }, "Too many frames or findings: only the first are listed."),
      error && h("p", { class: "small" }, `The reply contains an error: ${visible(error.message)}`),
      findings.length > 0 && h("ul", { class: "repairs", "aria-label": "Findings" },
        byRule(findings).map((same) => this.#finding(same))),
    );
  }

  /** @param {Finding[]} same findings of one rule */
  #finding(same) {
    const first = same[0];
    const framed = same.filter(({ frame }) => frame !== null);
    const left = framed.length - MAX_LINKS;
    return ruleItem(
      first,
      same.length,
      this.#rules.facts(first.rule),
      h("div", { class: "small frame-links" }, framed.length === 0 && "in the whole reply",
        framed.slice(0, MAX_LINKS).map((finding) => this.#frameLink(finding)), left > 0 && `and ${count(left)} more`),
    );
  }

  /** @param {Finding} finding */
  #frameLink(finding) {
    return h("button", { class: "link", on: { click: () => this.#choose(finding) } },
      `frame ${count(finding.frame ?? 0)}`);
  }

  /** @param {Finding} finding */
  #choose({ byte }) {
    this.#frames.choose(this.#result?.steps.findIndex((step) => step.byte === byte) ?? -1);
    this.#frames.element.scrollIntoView({ block: "nearest" });
  }

  #save() {
    if (!this.#result) return;
    const name = (this.#loaded?.name ?? "capture.sse").replace(/\.[^.]*$/, "");
    save(`${name}.fixed.sse`, this.#result.fixed, "text/event-stream");
  }
}

/**
 * @param {Finding[]} findings
 * @returns {Finding[][]}
 */
function byRule(findings) {
  /** @type {Map<string, Finding[]>} */
  const groups = new Map();
  for (const finding of findings) {
    const same = groups.get(finding.rule);
    if (same) same.push(finding);
    else groups.set(finding.rule, [finding]);
  }
  return [...groups.values()];
}
