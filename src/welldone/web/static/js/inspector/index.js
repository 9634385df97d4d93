// The stream inspector: the bytes of an exchange, frame by frame, beside the chat.

import { copyButton } from "../clipboard.js";
import { toast } from "../dialog.js";
import { fill, h } from "../dom.js";
import { save } from "../files.js";
import { count } from "../format.js";
import { AttemptList } from "./attempts.js";
import { Entry, trim } from "./entry.js";
import { FrameView } from "./frames.js";
import { LintView } from "./lint.js";
import { RepairsView } from "./repairs.js";
import { RequestView } from "./request.js";
import { SideSwitch } from "./sides.js";
import { makeTabs } from "./tabs.js";
import { TimelineView } from "./timeline.js";
import { figures } from "./totals.js";
import { TotalsBar } from "./totalsbar.js";
import { sentTrace, upstreamTrace } from "./trace.js";
import { whyEmpty } from "./messages.js";

/** @import { Exchange } from "../exchange.js" */
/** @import { Rules } from "../rules.js" */
/** @import { Side } from "./sides.js" */

/** Time to process frames before each repaint: most of a display frame. */
const WORK_MS = 12;

/**
 * @param {HTMLElement} root
 * @param {Page} page
 * @param {Rules} rules
 */
export function makeInspector(root, page, rules) {
  new Inspector(root, page, rules);
}

class Inspector {
  /** @type {Entry[]} */
  #entries = [];
  /** @type {Entry | null} */
  #entry = null;
  /** @type {Side} */
  #side = "sent";
  #isPaintScheduled = false;
  #frames;
  #repairs;
  #timeline = new TimelineView();
  #request;
  #lint;
  #tabs;
  #totals = new TotalsBar();
  #choice = h("select", { id: "exchange-choice", disabled: true }, h("option", {}, "none yet"));
  #empty = h("p", { class: "insp-empty" });
  #attempts = new AttemptList();
  #sides = new SideSwitch((side) => this.#show(side));

  /**
   * @param {HTMLElement} root
   * @param {Page} page
   * @param {Rules} rules
   */
  constructor(root, page, rules) {
    this.root = root;
    this.page = page;
    this.#frames = new FrameView("Frames");
    this.#repairs = new RepairsView(rules, (step) => this.#showStep(step));
    this.#request = new RequestView(page);
    this.#lint = new LintView(page, rules);
    const panels = {
      Frames: this.#framesPanel(),
      Repairs: this.#repairs.element,
      Timeline: this.#timeline.element,
      Request: this.#request.element,
      Lint: this.#lint.element,
    };
    this.#tabs = makeTabs("Inspector", panels, () => this.#schedulePaint());
    this.#tabs.show("Frames");
    root.append(this.#head(), this.#totals.element, this.#tabs.bar, ...this.#tabs.panels);
    this.#listen();
  }

  #head() {
    this.#choice.addEventListener("change", () => {
      const entry = this.#entries[this.#choice.selectedIndex];
      if (entry) this.#select(entry);
    });
    return h(
      "div",
      { class: "insp-head" },
      h("h2", {}, "Stream inspector"),
      h("label", { for: "exchange-choice", class: "sr-only" }, "Exchange"),
      this.#choice,
      h("button", { class: "quiet mini insp-close", "aria-label": "Close inspector",
        on: { click: () => this.page.bus.dispatchEvent(new Event("close-inspector")) } }, "✕"),
    );
  }

  #framesPanel() {
    const saveButton = h("button", { class: "quiet mini", title: "Save the listed frames as a trace",
      on: { click: () => this.#save() } }, "Save trace");
    const tools = h("div", { class: "frames-tools" }, this.#sides.element,
      saveButton, copyButton("Copy", () => this.#listed()));
    return h("div", { class: "frames-room" }, tools, this.#attempts.element, this.#empty, this.#frames.element);
  }

  #listen() {
    const { bus } = this.page;
    bus.addEventListener("exchange", (event) => this.#add(/** @type {CustomEvent<Exchange>} */ (event).detail));
    bus.addEventListener("trace", (event) => {
      this.#tabs.show("Lint");
      void this.#lint.openCapture(/** @type {CustomEvent<CaptureFile>} */ (event).detail);
    });
    this.root.addEventListener("dragover", (event) => {
      event.preventDefault();
      this.root.classList.add("is-target");
    });
    this.root.addEventListener("dragleave", () => this.root.classList.remove("is-target"));
    this.root.addEventListener("drop", (event) => this.#drop(event));
    new MutationObserver(() => this.#visibilityChanged()).observe(this.root, { attributeFilter: ["hidden"] });
  }

  /** Poll the capture only while the inspector is visible. */
  #visibilityChanged() {
    if (this.root.hidden) this.#entry?.capture.leave();
    else this.#entry?.capture.watch();
    this.#schedulePaint();
  }

  /** @param {DragEvent} event */
  #drop(event) {
    event.preventDefault();
    this.root.classList.remove("is-target");
    const [file] = event.dataTransfer?.files ?? [];
    if (!file) return;
    this.#tabs.show("Lint");
    void this.#lint.openFile(file);
  }

  /** @param {Exchange} exchange */
  #add(exchange) {
    const entry = new Entry(this.page, exchange);
    this.#entries.unshift(entry);
    trim(this.#entries);
    const isShown = () => entry === this.#entry && this.#schedulePaint();
    exchange.addEventListener("head", isShown);
    exchange.addEventListener("frame", isShown);
    entry.capture.addEventListener("change", isShown);
    exchange.addEventListener("end", () => {
      trim(this.#entries);
      this.#fillChoice();
      isShown();
    });
    this.#select(entry);
  }

  /** @param {Entry} entry */
  #select(entry) {
    this.#entry?.capture.leave();
    this.#entry = entry;
    if (!this.root.hidden) entry.capture.watch();
    this.#fillChoice();
    this.#show(this.#side);
  }

  #fillChoice() {
    fill(this.#choice, this.#entries.map((entry) => h("option", {}, entry.title)));
    this.#choice.disabled = this.#entries.length < 2;
    this.#choice.selectedIndex = this.#entry ? this.#entries.indexOf(this.#entry) : 0;
  }

  /** @param {Side} side */
  #show(side) {
    this.#side = side;
    this.#sides.press(side);
    if (this.#entry) this.#frames.open(this.#entry[side]);
    this.#schedulePaint();
  }

  /** @param {number} step */
  #showStep(step) {
    this.#tabs.show("Frames");
    this.#show("upstream");
    this.#frames.choose(step);
  }

  #schedulePaint() {
    if (this.#isPaintScheduled) return;
    this.#isPaintScheduled = true;
    requestAnimationFrame(() => {
      this.#isPaintScheduled = false;
      if (!this.root.hidden) this.#paint();
    });
  }

  #paint() {
    const entry = this.#entry;
    if (entry?.advance(performance.now() + WORK_MS)) this.#schedulePaint();
    const repairs = entry?.capture.isKnown ? entry.repairs : null;
    this.#totals.update(entry ? figures(entry.exchange, entry.totals, repairs) : []);
    const rules = repairs?.listed.length ?? 0;
    this.#tabs.mark("Repairs", rules ? count(rules) : "", repairs?.hasBreaking ?? false);
    const views = {
      Frames: () => this.#paintFrames(),
      Repairs: () => this.#repairs.update(entry),
      Timeline: () => this.#timeline.update(entry),
      Request: () => this.#request.update(entry?.exchange ?? null),
      Lint: () => this.#lint.update(),
    };
    views[/** @type {keyof typeof views} */ (this.#tabs.shown())]();
  }

  #paintFrames() {
    const entry = this.#entry;
    const message = whyEmpty(entry, this.#side);
    this.#empty.hidden = message === "";
    this.#empty.textContent = message;
    this.#frames.element.hidden = entry === null || entry[this.#side].count() === 0;
    const upstream = entry?.capture.isKnown ? entry.capture.steps.length : null;
    this.#sides.count({ sent: entry?.exchange.frames.length ?? null, upstream });
    this.#attempts.update(entry?.capture.attempts ?? []);
    this.#frames.update();
  }

  #listed() {
    const entry = this.#entry;
    if (!entry) return "";
    if (this.#side === "sent") return entry.exchange.frames.map(({ raw }) => raw).join("");
    return entry.capture.steps.map(({ received }) => received).join("");
  }

  #save() {
    const entry = this.#entry;
    if (!entry || entry.isDiscarded || entry[this.#side].count() === 0) {
      toast("There is nothing to save yet.", "error");
      return;
    }
    const { exchange, capture } = entry;
    const { name, record } = this.#side === "sent" ? sentTrace(exchange) : upstreamTrace(exchange, capture);
    save(name, JSON.stringify(record));
  }
}
