// The server view: models, upstreams, queues, keys, charts and the last requests, while somebody looks.

import { ApiError } from "../api.js";
import { toast } from "../dialog.js";
import { h } from "../dom.js";
import { duration } from "../format.js";
import { keyNews } from "../key.js";
import { Banner } from "./banner.js";
import { makeCharts } from "./charts.js";
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
  #less = h("p", { class: "notice-line", hidden: true }, LESS);
  #rooms = makeRooms();
  /** Hidden until there is something to see. */
  #all = h("div", { class: "server", hidden: true }, this.#about, this.#less);
  #charts = makeCharts(this.#rooms.Charts.body);
  #recent = makeRecent(this.#rooms["Recent requests"].body);
  #loader;
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
      trouble: (error, pauseMs) => this.#onTrouble(error, pauseMs),
      pauseMs: PAUSE_MS,
    });
    this.#loader = new Loader(page, () => this.#onLoader());
    this.#all.append(...Object.values(this.#rooms).map(({ element }) => element));
    root.append(this.#banner.element, this.#all);
    root.addEventListener("click", (event) => this.#onClick(event));
    document.addEventListener("visibilitychange", () => this.#settle());
    keyNews.addEventListener("change", () => this.#again());
  }

  /** @param {boolean} isShown */
  show(isShown) {
    this.#isShown = isShown;
    this.#settle();
  }

  /** Nothing is asked while nobody can see it. */
  #settle() {
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
    this.#less.hidden = state.is_admin;
    this.#rooms.Upstreams.element.hidden = !state.is_admin;
    this.#rooms.Charts.element.hidden = !state.has_metrics;
    patchChildren(this.#rooms.Models.body, drawModels(state, this.#loader.pending));
    patchChildren(this.#rooms.Upstreams.body, drawUpstreams(state));
    patchChildren(this.#rooms.Queue.body, drawQueue(state));
    patchChildren(this.#rooms.Keys.body, drawUsage(state));
    this.#recent.draw(state);
  }

  /**
   * @param {unknown} error
   * @param {number} pauseMs
   */
  #onTrouble(error, pauseMs) {
    if (error instanceof ApiError && error.status === 401) {
      // The reader did not give a key: nobody asks again by itself, and what an older key has shown is gone.
      this.#poller.stop();
      this.#all.hidden = true;
      this.#banner.needsKey();
    } else if (error instanceof ApiError) this.#banner.refused(error.message);
    else this.#banner.isAway(pauseMs);
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
    if (act === "again") this.#again();
    else if (act === "open") void this.#open(name);
    else if (act === "load") void this.#loader.load(name);
    else if (act === "unload") void this.#loader.unload(name);
  }

  #again() {
    this.#poller.stop();
    this.#settle();
  }

  /** @param {string} id of a request that was recorded */
  async #open(id) {
    try {
      const reply = await this.#page.api(`page/api/recordings/${encodeURIComponent(id)}`);
      this.#page.bus.dispatchEvent(new CustomEvent("trace", { detail: { name: id, text: await reply.text() } }));
    } catch (error) {
      toast(error instanceof ApiError ? error.message : "The recording could not be read.", "error");
    }
  }
}

const LESS = "You see the models that you may use, your own key and your own requests. Admins see more.";

/** @param {ServerState} state */
function aboutServer(state) {
  const { version, uptime_s: uptime, workers, is_recording: isRecording, is_draining: isDraining, principal } = state;
  return [
    `welldone ${version}`,
    `up ${duration(Math.floor(uptime) * 1000).replace(/\.00(?= s)/, "")}`,
    workers > 1 && `${workers} processes`,
    isRecording && "records streams",
    isDraining && "is ending: no new requests",
    principal === "anonymous" ? "no key is set" : `your key is ${principal}`,
  ]
    .filter(Boolean)
    .join(" · ");
}

function makeRooms() {
  return {
    Models: makeRoom("Models"),
    Upstreams: makeRoom("Upstreams"),
    Queue: makeRoom("Queue"),
    Keys: makeRoom("Keys"),
    Charts: makeRoom("Charts", "charts"),
    "Recent requests": makeRoom("Recent requests"),
  };
}

/**
 * @param {string} title
 * @param {string} [looks]
 */
function makeRoom(title, looks = "") {
  const body = h("div", { class: looks });
  return { body, element: h("section", { class: "room", "aria-label": title }, h("h2", {}, title), body) };
}
