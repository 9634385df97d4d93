// The same prompt side by side: the upstream's own stream and the repaired one, or two models.

import { ModelPicker } from "../chat/models.js";
import { FIELDS, readOptions } from "../chat/options.js";
import { toast } from "../dialog.js";
import { h } from "../dom.js";
import { keepDraft } from "../draft.js";
import { Exchange } from "../exchange.js";
import { Entry } from "../inspector/entry.js";
import { Column } from "./column.js";

/** @import { Rules } from "../rules.js" */

const MODES = /** @type {const} */ ({ direct: "Direct and through welldone", models: "Two models" });
const SETTINGS = ["temperature", "max_completion_tokens", "seed"];
const SAME = "Both columns have the same text.";
const DIFFERENT = "The texts of the two columns differ.";
const RETRIED = "The first attempt failed. welldone sent the answer of another one.";
const ABOUT =
  "Direct is the upstream's own stream of the same request, timed from when welldone sent it. Of several attempts it "
  + "is the first: a client without welldone gets no other.";

/**
 * @param {HTMLElement} root
 * @param {Page} page
 * @param {Rules} rules
 */
export function makeCompare(root, page, rules) {
  const view = new CompareView(root, page, rules);
  return { show: () => view.show(true), hide: () => view.show(false) };
}

class CompareView {
  #root;
  #page;
  #isShown = false;
  #isPaintScheduled = false;
  #prompt = h("textarea", { id: "compare-prompt", rows: 2, placeholder: "The prompt for both" });
  #mode = h("select", { id: "compare-mode" },
    Object.entries(MODES).map(([value, label]) => h("option", { value }, label)));
  #system = h("textarea", { id: "compare-system", rows: 2 });
  /** @type {Map<string, HTMLInputElement>} */
  #options = new Map(SETTINGS.map((name) => [name, h("input", { id: `compare-${name}`, inputMode: "decimal" })]));
  #send = h("button", { type: "submit", class: "primary", disabled: true }, "Compare");
  #stop = h("button", { hidden: true, title: "Esc", on: { click: () => this.#stopAll() } }, "Stop both");
  #about = h("p", { class: "soft small" }, ABOUT);
  #status = h("p", { class: "small", role: "status" });
  #models;
  #columns;
  /** @type {Entry[]} */
  #entries = [];

  /**
   * @param {HTMLElement} root
   * @param {Page} page
   * @param {Rules} rules
   */
  constructor(root, page, rules) {
    this.#root = root;
    this.#page = page;
    const changed = () => this.#changed();
    this.#models = [
      new ModelPicker(page, changed, { id: "compare-model", label: "Model", isLabelShown: true }),
      new ModelPicker(page, changed,
        { id: "compare-other-model", label: "Second model", isLabelShown: true, place: 1 }),
    ];
    const paint = () => this.#schedulePaint();
    this.#columns = ["Left", "Right"].map((name) => new Column(name, rules, paint));
    this.#columns[1].other = this.#columns[0];
    this.#mode.addEventListener("change", changed);
    keepDraft(this.#prompt, "welldone.compare-draft");
    root.append(this.#makeForm(), h("div", { class: "compare-columns" }, this.#columns.map(({ element }) => element)));
    root.classList.add("compare");
    root.tabIndex = -1;
    root.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !event.defaultPrevented) this.#stopAll();
    });
    this.#changed();
  }

  /** @param {boolean} isShown */
  show(isShown) {
    if (isShown && !this.#isShown) for (const models of this.#models) void models.refresh();
    this.#isShown = isShown;
    for (const { capture } of this.#entries) {
      if (isShown) capture.watch();
      else capture.leave();
    }
    if (isShown) this.#schedulePaint();
  }

  #makeForm() {
    const options = FIELDS.flatMap((field) => {
      const input = this.#options.get(field.name);
      return input ? [h("div", { class: "field" }, h("label", { for: input.id }, field.label), input)] : [];
    });
    const form = h(
      "form",
      { class: "compare-form", noValidate: true },
      h("h2", { class: "sr-only" }, "Side by side"),
      h("div", { class: "field" }, h("label", { for: "compare-prompt" }, "Prompt"), this.#prompt),
      h("div", { class: "compare-targets" },
        h("div", { class: "field" }, h("label", { for: "compare-mode" }, "Columns"), this.#mode),
        this.#models.map(({ element }) => element),
        h("div", { class: "compare-buttons" }, this.#send, this.#stop)),
      h("details", {}, h("summary", {}, "Settings"),
        h("div", { class: "field" }, h("label", { for: "compare-system" }, "System prompt"), this.#system),
        h("div", { class: "compare-options" }, options)),
      this.#about,
      this.#status,
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#run();
    });
    this.#prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || event.isComposing) return;
      event.preventDefault();
      void this.#run();
    });
    return form;
  }

  get #isDirect() {
    return this.#mode.value === "direct";
  }

  #changed() {
    const used = this.#isDirect ? this.#models.slice(0, 1) : this.#models;
    this.#models[1].element.hidden = this.#isDirect;
    this.#about.hidden = !this.#isDirect;
    this.#send.disabled = used.some(({ model }) => model === "");
  }

  get #isRunning() {
    return this.#entries.some(({ exchange }) => exchange.outcome === "running");
  }

  #stopAll() {
    for (const { exchange } of this.#entries) if (exchange.outcome === "running") exchange.stop();
  }

  /** The request for a model; null, with a toast, if a setting is invalid. */
  #body() {
    const typed = Object.fromEntries([...this.#options].map(([name, { value }]) => [name, value]));
    const { fields, errors } = readOptions(typed);
    const wrong = FIELDS.find(({ name }) => name in errors);
    if (wrong) {
      toast(`${wrong.label} cannot be sent. ${errors[wrong.name]}`, "error");
      this.#options.get(wrong.name)?.focus();
      return null;
    }
    const system = this.#system.value.trim() ? [{ role: "system", content: this.#system.value }] : [];
    const messages = [...system, { role: "user", content: this.#prompt.value }];
    return { messages, stream: true, stream_options: { include_usage: true }, ...fields };
  }

  async #run() {
    if (this.#isRunning || this.#send.disabled) return;
    if (!this.#prompt.value.trim()) {
      toast("Write a prompt first.");
      this.#prompt.focus();
      return;
    }
    const body = this.#body();
    if (!body) return;
    for (const { capture } of this.#entries) capture.drop();
    const isDirect = this.#isDirect;
    const names = this.#models.slice(0, isDirect ? 1 : 2).map(({ model }) => model);
    const entries = names.map((model) =>
      new Entry(this.#page, new Exchange(this.#page, "v1/chat/completions", { model, ...body })));
    this.#entries = entries;
    const titles = isDirect ? ["Direct", "Through welldone"] : names;
    this.#columns.forEach((column, place) =>
      column.show({ entry: entries[place] ?? entries[0], title: titles[place], isDirect: isDirect && place === 0,
        hasSides: !isDirect }));
    this.#setRunning(true);
    for (const { capture } of entries) capture.watch();
    await Promise.all(entries.map(({ exchange }) => exchange.run()));
    this.#setRunning(false);
    if (isDirect) await this.#compareTexts(entries[0]);
  }

  /** @param {boolean} isRunning */
  #setRunning(isRunning) {
    const hadFocus = document.activeElement === this.#stop || document.activeElement === this.#send;
    this.#send.hidden = isRunning;
    this.#stop.hidden = !isRunning;
    if (hadFocus) (isRunning ? this.#stop : this.#send).focus();
    if (isRunning) this.#status.textContent = "Both columns are running.";
    else if (!this.#isDirect) this.#status.textContent = "Both columns have ended.";
    this.#schedulePaint();
  }

  /**
   * Report whether the upstream's text equals the repaired one, once its whole stream has been read.
   *
   * @param {Entry} entry
   */
  async #compareTexts({ exchange, capture }) {
    while (!capture.isOver) await new Promise((resolve) => capture.addEventListener("change", resolve, { once: true }));
    if (this.#entries[0]?.capture !== capture) return;
    while (this.#paint());
    const [direct, repaired] = this.#columns.map(({ text }) => text);
    const isComparable = exchange.outcome === "whole" && capture.isKnown && !capture.isCut;
    const difference = capture.attempts.length > 1 ? RETRIED : DIFFERENT;
    this.#status.textContent = !isComparable ? "" : direct === repaired ? SAME : difference;
  }

  #schedulePaint() {
    if (this.#isPaintScheduled || !this.#isShown) return;
    this.#isPaintScheduled = true;
    requestAnimationFrame(() => {
      this.#isPaintScheduled = false;
      if (!this.#root.hidden && this.#paint()) this.#schedulePaint();
    });
  }

  /** Returns whether more is waiting. */
  #paint() {
    return this.#columns.map((column) => column.paint()).some(Boolean);
  }
}
