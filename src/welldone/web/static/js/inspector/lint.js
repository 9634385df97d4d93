// A captured stream, pasted or dropped: what is wrong with it, and how it reads when it is fixed.

import { ApiError } from "../api.js";
import { badge } from "../badge.js";
import { copyButton } from "../clipboard.js";
import { fill, h } from "../dom.js";
import { pick, read, save } from "../files.js";
import { bytes, count } from "../format.js";
import { sizeOf } from "../sse.js";
import { visible } from "../text.js";
import { FrameView } from "./frames.js";
import { line, ruleItem } from "./ruleitem.js";
import { upstreamSource } from "./sources.js";

/** What the server takes. */
const MOST_BYTES = 4 * 2 ** 20;
/** Frames that are named of each rule. */
const MOST_LINKS = 8;
/** What is put into the text field of a file; more makes browsers slow. The file itself is sent as it is. */
const MOST_SHOWN = 200_000;
const ENDPOINTS = ["chat", "completions", "responses", "messages"];
const VERDICTS = /** @type {const} */ ({
  right: { tone: "good", name: "Right:", text: "every client reads it as it was meant." },
  lax: { tone: "warn", name: "Lax:", text: "most clients cope with it." },
  wrong: { tone: "bad", name: "Wrong:", text: "it breaks clients." },
});

/**
 * What is to be linted, exactly: a text field would change its line ends.
 *
 * @typedef {{name: string, size: number, text?: string, base64?: string, request?: object}} Loaded
 */

export class LintView {
  #page;
  #text = h("textarea", { id: "lint-text", class: "mono", rows: 6, spellcheck: false,
    placeholder: "data: {\"choices\": … — paste a stream here, or drop a file" });
  #endpoint = h("select", {}, h("option", { value: "" }, "guess it"),
    ENDPOINTS.map((name) => h("option", { value: name }, name)));
  #about = h("p", { class: "small soft", role: "status" });
  #result = h("div", { class: "lint-result" });
  #frames;
  #button = h("button", { class: "primary", on: { click: () => void this.#lint() } }, "Lint and fix");
  #saveButton = h("button", { disabled: true, on: { click: () => this.#save() } }, "Save fixed");
  /** @type {Loaded | null} */
  #loaded = null;
  /** @type {Linted | null} */
  #linted = null;
  /** Of the question that was asked last: the answer to an older one is not wanted. */
  #abort = new AbortController();

  /** @param {Page} page */
  constructor(page) {
    this.#page = page;
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
      this.#result,
      this.#frames.element,
    );
    this.#typed();
  }

  /** Show what is there: it was made while nothing of it could be seen. */
  update() {
    if (!this.#frames.element.hidden) this.#frames.update();
  }

  /** @param {File} file */
  async openFile(file) {
    const data = await read(file, MOST_BYTES);
    if (!data) return;
    this.#load({ name: file.name, size: data.length, base64: base64(data) }, new TextDecoder().decode(data));
    await this.#lint();
  }

  /** @param {Capture} capture */
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
    this.#text.value = text.slice(0, MOST_SHOWN);
    const isCut = text.length > MOST_SHOWN;
    this.#tell(`${loaded.name}, ${bytes(loaded.size)}, is linted as it is${isCut ? "; its start is shown" : ""}.`);
  }

  async #pick() {
    const file = await pick();
    if (file) await this.openFile(file);
  }

  #typed() {
    this.#loaded = null;
    const size = sizeOf(this.#text.value);
    const limit = `at most ${bytes(MOST_BYTES)}`;
    const about = size ? `${bytes(size)} of ${limit}.` : `The output of curl, with or without its head; ${limit}.`;
    this.#tell(about, size > MOST_BYTES);
    this.#button.disabled = size === 0 || size > MOST_BYTES;
  }

  /**
   * @param {string} text
   * @param {boolean} [isError]
   */
  #tell(text, isError = false) {
    this.#about.textContent = visible(text);
    this.#about.classList.toggle("is-error", isError);
  }

  async #lint() {
    const loaded = this.#loaded ?? { name: "capture.sse", size: sizeOf(this.#text.value), text: this.#text.value };
    if (loaded.size > MOST_BYTES) {
      this.#tell(`It has ${bytes(loaded.size)}; ${bytes(MOST_BYTES)} are the most that is linted here.`, true);
      return;
    }
    const { text, base64: data, request } = loaded;
    const endpoint = this.#endpoint.value || undefined;
    const asked = { ...(data === undefined ? { capture: text } : { capture_base64: data }), endpoint, request };
    this.#abort.abort();
    this.#abort = new AbortController();
    const { signal } = this.#abort;
    try {
      this.#show(await this.#page.json("page/api/lint", { json: asked, signal }));
    } catch (error) {
      if (signal.aborted) return;
      this.#clear();
      this.#tell(error instanceof ApiError ? error.message : "The server cannot be reached.", true);
    }
  }

  #clear() {
    this.#linted = null;
    this.#saveButton.disabled = true;
    this.#frames.element.hidden = true;
    fill(this.#result);
  }

  /** @param {Linted} linted */
  #show(linted) {
    this.#linted = linted;
    this.#saveButton.disabled = false;
    this.#frames.element.hidden = false;
    this.#frames.open(upstreamSource(() => linted.steps));
    const { tone, name, text } = VERDICTS[linted.verdict];
    const { findings, error } = linted;
    fill(
      this.#result,
      h("p", { role: "status" },
        badge(name, tone), ` ${text} `,
        h("span", { class: "soft small" }, `Read as ${linted.endpoint}, ${linted.form}.`),
        copyButton("Copy fixed", () => linted.fixed, "Copy fixed")),
      linted.is_cut && h("p", { class: "small" }, "Not all of its frames are listed: there are too many."),
      error && h("p", { class: "small" }, `It carries an error: ${visible(error.message)}`),
      findings.length > 0 && h("ul", { class: "repairs", "aria-label": "Findings" },
        byRule(findings).map((same) => this.#finding(same))),
    );
  }

  /** @param {Finding[]} same findings of one rule */
  #finding(same) {
    const first = same[0];
    const framed = same.filter(({ frame }) => frame !== null);
    const left = framed.length - MOST_LINKS;
    return ruleItem(
      first,
      same.length,
      first.hurts.length > 0 && line("hurts: ", first.hurts.join("; ")),
      h("div", { class: "small frame-links" }, framed.length === 0 && "in the reply as a whole",
        framed.slice(0, MOST_LINKS).map((finding) => this.#frameLink(finding)), left > 0 && `and ${count(left)} more`),
    );
  }

  /** @param {Finding} finding */
  #frameLink(finding) {
    return h("button", { class: "link", on: { click: () => this.#choose(finding) } },
      `frame ${count(finding.frame ?? 0)}`);
  }

  /** @param {Finding} finding */
  #choose({ byte }) {
    this.#frames.choose(this.#linted?.steps.findIndex((step) => step.byte === byte) ?? -1);
    this.#frames.element.scrollIntoView({ block: "nearest" });
  }

  #save() {
    if (!this.#linted) return;
    const name = (this.#loaded?.name ?? "capture.sse").replace(/\.[^.]*$/, "");
    save(`${name}.fixed.sse`, this.#linted.fixed, "text/event-stream");
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

/** @param {Uint8Array} data */
function base64(data) {
  let letters = "";
  // A call takes only so many arguments.
  for (let at = 0; at < data.length; at += 8192) letters += String.fromCharCode(...data.subarray(at, at + 8192));
  return btoa(letters);
}
