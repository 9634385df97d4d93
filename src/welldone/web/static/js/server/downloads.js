// Search of the Hugging Face Hub, and download of a model with its progress. For admins.

import { ApiError } from "../api.js";
import { badge } from "../badge.js";
import { toast } from "../dialog.js";
import { fill, h } from "../dom.js";
import { bytes, count, plural } from "../format.js";
import { visible } from "../text.js";
import { table, textOrDash } from "./parts.js";
import { patchChildren } from "./patch.js";

/** @import { Column } from "./parts.js" */

/** @typedef {{id: string, downloads: number, likes: number, is_gated: boolean}} Repository */
/** @typedef {{label: string, source: string, size_bytes: number, files: number, is_default: boolean}} HubModel */

const REPOSITORY = /^(?:hf:)?[\w.-]+\/[\w.-]+$/;

export class Downloads {
  #page;
  #changed;
  #input = h("input", { type: "search", name: "q", placeholder: "name of a model, or OWNER/REPO", maxLength: 200 });
  #status = h("p", { class: "soft small", role: "status" });
  #results = h("div");
  #progress = h("div");
  /** @type {AbortController | null} Of the running search. */
  #running = null;
  /** Whether a download is running, as the server has reported it. */
  #isDownloading = false;

  /**
   * @param {HTMLElement} root
   * @param {Page} page
   * @param {() => void} changed called when a download was started or cancelled
   */
  constructor(root, page, changed) {
    this.#page = page;
    this.#changed = changed;
    const search = h("button", { type: "submit" }, "Search");
    const form = h("form", { class: "filters" }, h("label", {}, "Model on the Hugging Face Hub ", this.#input), search);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#find(this.#input.value.trim());
    });
    root.append(form, this.#progress, this.#status, this.#results);
    root.addEventListener("click", (event) => this.#onClick(event));
  }

  /** @param {DownloadState} download */
  draw(download) {
    this.#isDownloading = download.state === "running";
    patchChildren(this.#progress, drawProgress(download));
    for (const button of this.#results.querySelectorAll('[data-act="download"]')) {
      button.setAttribute("aria-disabled", String(this.#isDownloading));
    }
  }

  /** @param {Event} event */
  #onClick({ target }) {
    const button = target instanceof Element ? target.closest("[data-act]") : null;
    if (!(button instanceof HTMLElement) || button.getAttribute("aria-disabled") === "true") return;
    const { act, name = "" } = button.dataset;
    if (act === "files") void this.#list(name);
    else if (act === "download") void this.#change({ json: { source: name } });
    else if (act === "cancel") void this.#change({ method: "DELETE" });
  }

  /** @param {string} text words, or a repository */
  async #find(text) {
    if (text === "") return;
    if (REPOSITORY.test(text)) {
      await this.#list(text);
      return;
    }
    const path = `page/api/hub/search?q=${encodeURIComponent(text)}`;
    const found = /** @type {{repositories: Repository[]} | null} */ (await this.#ask(path, "Searching…"));
    if (found === null) return;
    const { repositories } = found;
    this.#status.textContent = repositories.length === 0 ? "No repository with GGUF models has this name." : "";
    if (repositories.length > 0) fill(this.#results, table("Repositories", REPOSITORIES, repositories, ({ id }) => id));
  }

  /** @param {string} repository */
  async #list(repository) {
    const path = `page/api/hub/files?repository=${encodeURIComponent(repository)}`;
    const found = /** @type {{models: HubModel[]} | null} */ (await this.#ask(path, "Reading the list of files…"));
    if (found === null) return;
    const { models } = found;
    const text = models.length === 0 ? "has no GGUF model." : `has ${plural(models.length, "model")}.`;
    this.#status.textContent = `${visible(repository)} ${text}`;
    if (models.length === 0) return;
    const columns = [...MODELS, downloadColumn(this.#isDownloading)];
    fill(this.#results, table("Models of the repository", columns, models, ({ source }) => source));
  }

  /**
   * @param {string} path
   * @param {string} waiting
   * @returns {Promise<unknown>} null if it failed, or another search has begun
   */
  async #ask(path, waiting) {
    this.#running?.abort();
    const own = (this.#running = new AbortController());
    this.#status.textContent = waiting;
    fill(this.#results);
    try {
      return await this.#page.json(path, { signal: own.signal });
    } catch (error) {
      if (this.#running === own) this.#status.textContent = problem(error);
      return null;
    }
  }

  /** @param {ApiOptions} options */
  async #change(options) {
    try {
      await this.#page.api("page/api/pull", options);
    } catch (error) {
      toast(problem(error), "error");
    }
    this.#changed();
  }
}

/** @param {unknown} error */
function problem(error) {
  return error instanceof ApiError ? visible(error.message) : "The server does not respond.";
}

/** @type {Column<Repository>[]} */
const REPOSITORIES = [
  { title: "Repository", cell: ({ id, is_gated: isGated }) => [textOrDash(id), isGated && badge("gated", "warn")] },
  { title: "Downloads", isNumber: true, cell: ({ downloads }) => count(downloads) },
  { title: "Likes", isNumber: true, cell: ({ likes }) => count(likes) },
  { title: "Actions", cell: ({ id }) => button("Show files", `Show the files of ${id}`, { act: "files", name: id }) },
];

/** @type {Column<HubModel>[]} */
const MODELS = [
  { title: "Quantisation", cell: ({ label, is_default: is }) => [textOrDash(label), is && badge("usual choice", "info")] },
  { title: "Size", isNumber: true, cell: ({ size_bytes: size }) => bytes(size || null) },
  { title: "Files", isNumber: true, cell: ({ files }) => count(files) },
];

/**
 * @param {boolean} isDownloading
 * @returns {Column<HubModel>}
 */
function downloadColumn(isDownloading) {
  return {
    title: "Actions",
    cell: ({ label, source }) => {
      const made = button("Download", `Download ${label}`, { act: "download", name: source });
      made.setAttribute("aria-disabled", String(isDownloading));
      return made;
    },
  };
}

/**
 * @param {string} word
 * @param {string} label
 * @param {Record<string, string>} dataset
 */
function button(word, label, dataset) {
  return h("button", { class: "mini", "aria-label": visible(label), dataset }, word);
}

/**
 * @param {DownloadState} download
 * @returns {Node[]}
 */
function drawProgress({ state, source, file, done_bytes: done, total_bytes: total, error, model }) {
  const name = visible(source);
  if (state === "idle") return [];
  if (state === "failed") return [h("p", { class: "reason", dataset: { key: "end" } }, visible(error ?? "It failed."))];
  if (state === "cancelled") {
    return [h("p", { class: "soft", dataset: { key: "end" } }, `${name}: cancelled. A new download resumes it.`)];
  }
  if (state === "done") {
    const command = h("code", {}, `welldone serve -m ${visible(model ?? "")}`);
    return [h("p", { dataset: { key: "end" } }, `${name} is downloaded. Serve it with `, command)];
  }
  const size = total === null ? bytes(done) : `${bytes(done)} of ${bytes(total)}`;
  const bar = { class: "download", "aria-label": `Download of ${name}`, ...(total ? { max: total, value: done } : {}) };
  return [
    h(
      "p",
      { dataset: { key: "running" } },
      h("progress", bar),
      ` ${name}${file === "" ? "" : `: ${visible(file)}, ${size}`} `,
      button("Cancel", "Cancel the download", { act: "cancel" }),
    ),
  ];
}
