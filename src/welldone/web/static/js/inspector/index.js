// The stream inspector: what goes over the wire, frame by frame, beside the chat.

import { copyButton } from "../clipboard.js";
import { toast } from "../dialog.js";
import { fill, h } from "../dom.js";
import { save } from "../files.js";
import { count } from "../format.js";
import { Rules } from "../rules.js";
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
import { ourTrace, upstreamTrace } from "./trace.js";
import { whyEmpty } from "./why.js";

/** @import { Exchange } from "../exchange.js" */
/** @import { Side } from "./sides.js" */

/** How long frames are read before the page is painted again: most of a frame of the screen. */
const WORK_MS = 12;

/**
 * @param {HTMLElement} root
 * @param {Page} page
 */
export function makeInspector(root, page) {
  new Inspector(root, page);
}

class Inspector {
  /** @type {Entry[]} */
  #entries = [];
  /** @type {Entry | null} */
  #entry = null;
  /** @type {Side} */
  #side = "sent";
  #isPlanned = false;
  #rules;
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
   */
  constructor(root, page) {
    this.root = root;
    this.page = page;
    this.#rules = new Rules(page);
    this.#frames = new FrameView("Frames");
    this.#repairs = new RepairsView(this.#rules, (step) => this.#showStep(step));
    this.#request = new RequestView(page);
    this.#lint = new LintView(page);
    const rooms = {
      Frames: this.#framesRoom(),
      Repairs: this.#repairs.element,
      Timeline: this.#timeline.element,
      Request: this.#request.element,
      Lint: this.#lint.element,
    };
    this.#tabs = makeTabs("Inspector", rooms, () => this.#plan());
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

  #framesRoom() {
    const saveButton = h("button", { class: "quiet mini", title: "Save what is listed as a trace",
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
      void this.#lint.openCapture(/** @type {CustomEvent<Capture>} */ (event).detail);
    });
    this.root.addEventListener("dragover", (event) => {
      event.preventDefault();
      this.root.classList.add("is-target");
    });
    this.root.addEventListener("dragleave", () => this.root.classList.remove("is-target"));
    this.root.addEventListener("drop", (event) => this.#drop(event));
    new MutationObserver(() => this.#seen()).observe(this.root, { attributeFilter: ["hidden"] });
  }

  /** The server is asked about the upstream only while somebody looks. */
  #seen() {
    if (this.root.hidden) this.#entry?.tape.leave();
    else this.#entry?.tape.watch();
    this.#plan();
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
    const isShown = () => entry === this.#entry && this.#plan();
    exchange.addEventListener("head", isShown);
    exchange.addEventListener("frame", isShown);
    entry.tape.addEventListener("change", isShown);
    exchange.addEventListener("end", () => {
      trim(this.#entries);
      this.#fillChoice();
      isShown();
    });
    this.#select(entry);
  }

  /** @param {Entry} entry */
  #select(entry) {
    this.#entry?.tape.leave();
    this.#entry = entry;
    if (!this.root.hidden) entry.tape.watch();
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
    this.#plan();
  }

  /** @param {number} step */
  #showStep(step) {
    this.#tabs.show("Frames");
    this.#show("upstream");
    this.#frames.choose(step);
  }

  #plan() {
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    requestAnimationFrame(() => {
      this.#isPlanned = false;
      if (!this.root.hidden) this.#paint();
    });
  }

  #paint() {
    const entry = this.#entry;
    if (entry?.advance(performance.now() + WORK_MS)) this.#plan();
    const repairs = entry?.tape.isKnown ? entry.repairs : null;
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
    const why = whyEmpty(entry, this.#side);
    this.#empty.hidden = why === "";
    this.#empty.textContent = why;
    this.#frames.element.hidden = entry === null || entry[this.#side].count() === 0;
    const upstream = entry?.tape.isKnown ? entry.tape.steps.length : null;
    this.#sides.count({ sent: entry?.exchange.frames.length ?? null, upstream });
    this.#attempts.update(entry?.tape.attempts ?? []);
    this.#frames.update();
  }

  #listed() {
    const entry = this.#entry;
    if (!entry) return "";
    if (this.#side === "sent") return entry.exchange.frames.map(({ raw }) => raw).join("");
    return entry.tape.steps.map(({ heard }) => heard).join("");
  }

  #save() {
    const entry = this.#entry;
    if (!entry || entry.isForgotten || entry[this.#side].count() === 0) {
      toast("There is nothing to save yet", "error");
      return;
    }
    const { exchange, tape } = entry;
    const { name, record } = this.#side === "sent" ? ourTrace(exchange) : upstreamTrace(exchange, tape);
    save(name, JSON.stringify(record));
  }
}
