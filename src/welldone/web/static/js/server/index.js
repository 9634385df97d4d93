// The server view: models, upstreams, queues, keys, charts and recent requests. Polls while it is visible.

import { ApiError } from "../api.js";
import { toast } from "../dialog.js";
import { h } from "../dom.js";
import { duration } from "../format.js";
import { keyNews } from "../key.js";
import { Banner } from "./banner.js";
import { makeCharts } from "./charts.js";
import { Downloads } from "./downloads.js";
import { KeysPanel } from "./keys.js";
import { Loader } from "./loader.js";
import { drawModels } from "./models.js";
import { patchChildren } from "./patch.js";
import { Poller } from "./poll.js";
import { drawQueue } from "./queue.js";
import { makeRecent } from "./recent.js";
import { drawUpstreams } from "./upstreams.js";
import { drawUsage } from "./usage.js";

const PAUSE_MS = 2_000;

/**
 * @param {HTMLElement} root
 * @param {Page} page
 */
export function makeServerView(root, page) {
  const view = new ServerView(root, page);
  return { show: () => view.show(true), hide: () => view.show(false) };
}

class ServerView {
  #page;
  #poller;
  #banner = new Banner();
  #about = h("p", { class: "soft small" });
  #limited = h("p", { class: "notice-line", hidden: true }, LIMITED_VIEW);
  #sections = makeSections();
  /** Hidden until the first state arrives. */
  #all = h("div", { class: "server", hidden: true }, this.#about, this.#limited);
  #charts = makeCharts(this.#sections.Charts.body);
  #recent = makeRecent(this.#sections["Recent requests"].body);
  #loader;
  #downloads;
  #keys;
  /** @type {ServerState | null} */
  #state = null;
  #isShown = false;

  /**
   * @param {HTMLElement} root
   * @param {Page} page
   */
  constructor(root, page) {
    this.#page = page;
    this.#poller = new Poller({
      ask: (signal) => this.#ask(signal),
      onFailure: (error, pauseMs) => this.#onFailure(error, pauseMs),
      pauseMs: PAUSE_MS,
    });
    this.#loader = new Loader(page, () => this.#onLoader());
    this.#downloads = new Downloads(this.#sections["Get a model"].body, page, () => this.#poller.hurry());
    this.#keys = new KeysPanel(page);
    this.#sections["API keys"].body.append(this.#keys.element);
    this.#all.append(...Object.values(this.#sections).map(({ element }) => element));
    root.append(this.#banner.element, this.#all);
    root.addEventListener("click", (event) => this.#onClick(event));
    document.addEventListener("visibilitychange", () => this.#startOrStop());
    keyNews.addEventListener("change", () => this.#restart());
  }

  /** @param {boolean} isShown */
  show(isShown) {
    this.#isShown = isShown;
    this.#startOrStop();
    if (!isShown) this.#keys.show(false);
  }

  /** Poll only while the view is visible. */
  #startOrStop() {
    if (this.#isShown && !document.hidden) this.#poller.start();
    else this.#poller.stop();
  }

  /** @param {AbortSignal} signal */
  async #ask(signal) {
    this.#state = await this.#page.json("page/api/state", { signal });
    this.#draw();
    if (this.#state?.has_metrics) {
      const metrics = await this.#page.api("metrics", { signal });
      this.#charts.add(await metrics.text());
    }
    this.#banner.hide();
  }

  #draw() {
    const state = this.#state;
    if (state === null) return;
    this.#all.hidden = false;
    const text = aboutServer(state);
    if (this.#about.textContent !== text) this.#about.textContent = text;
    this.#limited.hidden = state.is_admin;
    this.#sections.Upstreams.element.hidden = !state.is_admin;
    this.#sections.Charts.element.hidden = !state.has_metrics;
    this.#sections["Get a model"].element.hidden = state.download === null;
    if (state.download !== null) this.#downloads.draw(state.download);
    this.#sections["API keys"].element.hidden = !state.has_key_store;
    this.#keys.show(state.has_key_store && this.#isShown);
    patchChildren(this.#sections.Models.body, drawModels(state, this.#loader.pending));
    patchChildren(this.#sections.Upstreams.body, drawUpstreams(state));
    patchChildren(this.#sections.Queue.body, drawQueue(state));
    patchChildren(this.#sections.Keys.body, drawUsage(state));
    this.#recent.draw(state);
  }

  /**
   * @param {unknown} error
   * @param {number} pauseMs
   */
  #onFailure(error, pauseMs) {
    if (error instanceof ApiError && error.status === 401) {
      // The user gave no key: stop polling, and hide what an earlier key has shown.
      this.#poller.stop();
      this.#all.hidden = true;
      this.#banner.needsKey();
    } else if (error instanceof ApiError) this.#banner.failed(error.message);
    else this.#banner.unreachable(pauseMs);
  }

  #onLoader() {
    this.#draw();
    this.#poller.hurry();
  }

  /** @param {Event} event */
  #onClick({ target }) {
    const button = target instanceof Element ? target.closest("[data-act]") : null;
    if (!(button instanceof HTMLElement)) return;
    const { act, name = "" } = button.dataset;
    if (act === "retry") this.#restart();
    else if (act === "open") void this.#open(name);
    else if (act === "load") void this.#loader.load(name);
    else if (act === "unload") void this.#loader.unload(name);
    else if (act === "add-key") void this.#keys.add();
    else if (act === "remove-key") void this.#keys.remove(name);
  }

  #restart() {
    this.#poller.stop();
    this.#startOrStop();
  }

  /** @param {string} id of a recorded request */
  async #open(id) {
    try {
      const reply = await this.#page.api(`page/api/recordings/${encodeURIComponent(id)}`);
      this.#page.bus.dispatchEvent(new CustomEvent("trace", { detail: { name: id, text: await reply.text() } }));
    } catch (error) {
      toast(error instanceof ApiError ? error.message : "The recording could not be read.", "error");
    }
  }
}

const LIMITED_VIEW = "You see the models you may use, your own key and your own requests. Admins see everything.";

/** @param {ServerState} state */
function aboutServer(state) {
  const { version, uptime_s: uptime, workers, is_recording: isRecording, is_draining: isDraining, principal } = state;
  return [
    `welldone ${version}`,
    `up ${duration(Math.floor(uptime) * 1000).replace(/\.00(?= s)/, "")}`,
    workers > 1 && `${workers} workers`,
    isRecording && "recording",
    isDraining && "shutting down: no new requests",
    principal === "anonymous" ? "no key required" : `your key: ${principal}`,
  ]
    .filter(Boolean)
    .join(" · ");
}

function makeSections() {
  return {
    Models: makeSection("Models"),
    "Get a model": makeSection("Get a model"),
    Upstreams: makeSection("Upstreams"),
    Queue: makeSection("Queue"),
    Keys: makeSection("Keys"),
    "API keys": makeSection("API keys"),
    Charts: makeSection("Charts", "charts"),
    "Recent requests": makeSection("Recent requests"),
  };
}

/**
 * @param {string} title
 * @param {string} [className]
 */
function makeSection(title, className = "") {
  const body = h("div", { class: className });
  return { body, element: h("section", { class: "room", "aria-label": title }, h("h2", {}, title), body) };
}
