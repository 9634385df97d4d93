// One side of a comparison: times, the answer as a client reads it, the frames and the repairs.

import { fill, h } from "../dom.js";
import { plural } from "../format.js";
import { AttemptList } from "../inspector/attempts.js";
import { Entry } from "../inspector/entry.js";
import { FrameView } from "../inspector/frames.js";
import { ending, whyEmpty } from "../inspector/messages.js";
import { RepairsView } from "../inspector/repairs.js";
import { SideSwitch } from "../inspector/sides.js";
import { upstreamSource } from "../inspector/sources.js";
import { figures } from "../inspector/totals.js";
import { TotalsBar } from "../inspector/totalsbar.js";
import { Live } from "../markdown/index.js";
import { visible } from "../text.js";
import { DirectStream, PlainReader } from "./direct.js";

/** @import { News } from "../chat/answer.js" */
/** @import { Side } from "../inspector/sides.js" */
/** @import { Rules } from "../rules.js" */

/** Time to read frames before each repaint: most of a display frame, for both columns. */
const WORK_MS = 6;
const MAX_FRAMES = 200; // read into the answer between two checks of the clock

/** What a column shows. `isDirect`: the upstream's own stream; otherwise what welldone sent. */
/** @typedef {{entry: Entry, title: string, isDirect: boolean, hasSides: boolean}} Shown */

export class Column {
  #changed;
  #title = h("h3");
  #totals = new TotalsBar();
  #answer = h("div", { class: "compare-answer", tabIndex: 0, role: "region" });
  /** @type {Live | null} */
  #live = null;
  #reader = new PlainReader();
  #direct = new DirectStream();
  #read = 0;
  #problems = h("div", { class: "compare-problems", role: "status" });
  #problemText = "";
  #attempts = new AttemptList();
  #empty = h("p", { class: "insp-empty" });
  #frames;
  #sides = new SideSwitch((side) => this.#choose(side));
  /** @type {Side} */
  #side = "sent";
  #repairs;
  #stop = h("button", { class: "mini", hidden: true, on: { click: () => this.#shown?.entry.exchange.stop() } }, "Stop");
  /** @type {Shown | null} */
  #shown = null;
  #isEnded = false;
  /** Name of the tool call that is being shown. */
  #called = "";
  #thoughts = h("p", { class: "soft small", hidden: true });
  /** The column with the upstream's frames, if this one has only those sent. @type {Column | null} */
  other = null;

  /**
   * @param {string} name
   * @param {Rules} rules
   * @param {() => void} changed called when it must be painted
   */
  constructor(name, rules, changed) {
    this.#changed = changed;
    this.#frames = new FrameView(`${name}: frames`);
    this.#repairs = new RepairsView(rules, (step) => (this.#shown?.hasSides ? this : this.other)?.showStep(step),
      { hasEnding: false });
    this.#answer.setAttribute("aria-label", `${name}: answer`);
    this.#repairs.element.classList.replace("insp-scroll", "compare-repairs");
    this.element = h(
      "section",
      { class: "compare-column", "aria-label": name, hidden: true },
      h("div", { class: "compare-title" }, this.#title, this.#stop),
      this.#totals.element,
      this.#problems,
      this.#thoughts,
      this.#answer,
      h("div", { class: "compare-wire" }, this.#sides.element, this.#attempts.element, this.#empty,
        this.#frames.element),
      this.#repairs.element,
    );
  }

  /** @param {Shown} shown */
  show(shown) {
    this.#shown = shown;
    this.element.hidden = false;
    this.#reader = new PlainReader();
    this.#direct = new DirectStream();
    this.#read = 0;
    this.#isEnded = false;
    this.#called = "";
    fill(this.#answer);
    this.#live = new Live(this.#answer.appendChild(h("div")));
    this.#sides.element.hidden = !shown.hasSides;
    this.#repairs.element.hidden = shown.isDirect;
    this.#choose("sent");
    const { exchange, capture } = shown.entry;
    for (const event of ["head", "frame", "end"]) exchange.addEventListener(event, this.#changed);
    capture.addEventListener("change", this.#changed);
  }

  /** The text of the answer so far. */
  get text() {
    return this.#answerOf().content;
  }

  /** Paint what is new. Returns whether more is waiting. */
  paint() {
    const shown = this.#shown;
    if (!shown) return false;
    const { entry, isDirect, title } = shown;
    const { exchange, capture } = entry;
    const until = performance.now() + WORK_MS;
    let hasMore = entry.advance(until);
    if (isDirect) this.#hear(this.#direct.advance(capture));
    else hasMore = this.#readSent(until) || hasMore;
    const name = isDirect && this.#direct.server ? `${title}: ${visible(this.#direct.server)}` : title;
    if (this.#title.textContent !== name) this.#title.textContent = name;
    this.#totals.update(isDirect ? this.#direct.figures()
      : figures(exchange, entry.totals, capture.isKnown ? entry.repairs : null));
    const { length } = this.#answerOf().reasoning;
    this.#thoughts.hidden = length === 0;
    this.#thoughts.textContent = `Reasoning: ${plural(length, "character")}.`;
    this.#stop.hidden = exchange.outcome !== "running" || !shown.hasSides;
    this.#paintProblems();
    this.#paintFrames(shown);
    if (!isDirect) this.#repairs.update(entry);
    const isOver = exchange.outcome !== "running" && !hasMore && (!isDirect || capture.isOver);
    if (isOver && !this.#isEnded) {
      this.#isEnded = true;
      this.#live?.end();
    }
    return hasMore;
  }

  #answerOf() {
    return this.#shown?.isDirect ? this.#direct.reader.answer : this.#reader.answer;
  }

  /** @param {number} until */
  #readSent(until) {
    const frames = this.#shown?.entry.exchange.frames ?? [];
    while (this.#read < frames.length && performance.now() < until) {
      const some = frames.slice(this.#read, this.#read + MAX_FRAMES);
      this.#read += some.length;
      this.#hear(some.map((frame) => this.#reader.read(frame)));
    }
    return this.#read < frames.length;
  }

  /** @param {News[]} news */
  #hear(news) {
    const text = news.map(({ content, refusal, calls }) =>
      content + refusal + calls.map(({ name, piece }) => piece && `${this.#callHead(name)}${piece}`).join("")).join("");
    if (text) this.#live?.append(text);
  }

  /** @param {string} name of a tool, shown once */
  #callHead(name) {
    if (name === this.#called) return "";
    this.#called = name;
    return `\n\n${name} `;
  }

  #paintProblems() {
    const shown = this.#shown;
    if (!shown) return;
    const end = ending(shown.entry);
    const found = shown.isDirect && shown.entry.exchange.outcome !== "stopped" ? this.#direct.problems()
      : end ? [end.text] : [];
    const text = found.join("\n");
    if (text === this.#problemText) return;
    this.#problemText = text;
    this.#problems.classList.toggle("is-error", shown.isDirect || (end?.isBad ?? false));
    fill(this.#problems, found.map((problem) => h("p", {}, problem)));
  }

  /** @param {Shown} shown */
  #paintFrames({ entry, isDirect, hasSides }) {
    const side = isDirect ? "upstream" : this.#side;
    const frames = isDirect ? this.#direct.steps.length : entry[side].count();
    const message = isDirect && frames ? "" : whyEmpty(entry, side);
    this.#empty.hidden = message === "";
    this.#empty.textContent = message;
    this.#frames.element.hidden = frames === 0;
    const upstream = entry.capture.isKnown ? entry.capture.steps.length : null;
    this.#sides.count({ sent: entry.exchange.frames.length, upstream });
    this.#attempts.update(isDirect || hasSides ? entry.capture.attempts : []);
    this.#frames.update();
  }

  /** @param {Side} side */
  #choose(side) {
    this.#side = side;
    this.#sides.press(side);
    const shown = this.#shown;
    if (!shown) return;
    this.#frames.open(shown.isDirect ? upstreamSource(() => this.#direct.steps) : shown.entry[side]);
    this.#changed();
  }

  /**
   * Select a frame of the upstream.
   *
   * @param {number} step
   */
  showStep(step) {
    const shown = this.#shown;
    if (!shown) return;
    if (!shown.isDirect) this.#choose("upstream");
    this.#frames.choose(shown.isDirect ? this.#direct.indexOf(step) : step);
    this.#frames.element.scrollIntoView({ block: "nearest" });
  }
}
