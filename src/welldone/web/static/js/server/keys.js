// Stored API keys, for admins: list, add and remove. A new key is shown once.

import { ApiError } from "../api.js";
import { copyButton } from "../clipboard.js";
import { confirm, dialog, toast } from "../dialog.js";
import { h } from "../dom.js";
import { count } from "../format.js";
import { textOrDash, table } from "./parts.js";
import { patchChildren } from "./patch.js";

/** @import { Column } from "./parts.js" */

const ABOUT = "Keys in the key file or in the shared store. Servers follow a change within seconds, without a restart.";
const RATES = { requests_per_minute: "Requests per minute", tokens_per_minute: "Tokens per minute" };

export class KeysPanel {
  #page;
  #list = h("div");
  #error = h("p", { class: "reason", role: "alert", hidden: true });
  #isShown = false;

  /** @param {Page} page */
  constructor(page) {
    this.#page = page;
    this.element = h("div", {}, h("p", { class: "soft small" }, ABOUT), this.#error, this.#list,
      h("div", { class: "panel-buttons" }, h("button", { class: "mini", dataset: { act: "add-key" } }, "Add key")));
  }

  /**
   * Load the list when it is first shown. Later it changes here, or after a return to this view.
   *
   * @param {boolean} isShown
   */
  show(isShown) {
    if (isShown && !this.#isShown) void this.refresh();
    this.#isShown = isShown;
  }

  async refresh() {
    try {
      const { data } = await this.#page.json("keys");
      this.#draw(data);
      this.#fail("");
    } catch (error) {
      this.#fail(messageOf(error));
    }
  }

  /** Ask for the name and the permissions of a new key, add it, and show it. */
  async add() {
    const form = makeForm();
    for (;;) {
      const chosen = await dialog({
        title: "Add an API key",
        body: form.body,
        actions: [
          { label: "Cancel", value: "" },
          { label: "Add key", value: "add", kind: "primary" },
        ],
        accept: (value) => value !== "add" || form.isGood(),
      });
      if (chosen !== "add") return;
      try {
        const { name, key } = await this.#page.json("keys", { json: form.value() });
        void this.refresh();
        await showKey(name, key);
        return;
      } catch (error) {
        form.fail(messageOf(error)); // and ask again, with what was typed
      }
    }
  }

  /** @param {string} name */
  async remove(name) {
    const text = "Requests with this key are rejected from then on. This cannot be undone.";
    if (!(await confirm(`Remove the key of ${name}?`, text, "Remove"))) return;
    try {
      await this.#page.api(`keys/${encodeURIComponent(name)}`, { method: "DELETE" });
      toast(`The key of ${name} is removed. Servers reject it within 5 seconds.`);
    } catch (error) {
      toast(messageOf(error), "error");
    }
    await this.refresh();
  }

  /** @param {StoredKey[]} keys */
  #draw(keys) {
    const shown = keys.length ? table("Stored keys", COLUMNS, keys, ({ name }) => name)
      : h("p", { class: "soft" }, "There are no stored keys yet.");
    patchChildren(this.#list, [shown]);
  }

  /** @param {string} message */
  #fail(message) {
    this.#error.textContent = message;
    this.#error.hidden = !message;
  }
}

/** @type {Column<StoredKey>[]} */
const COLUMNS = [
  { title: "Key", cell: ({ name }) => textOrDash(name) },
  { title: "Models", cell: ({ models }) => (models.length ? models.map(textOrDash).join(", ") : "all") },
  { title: "Requests per minute", isNumber: true, cell: ({ requests_per_minute: rate }) => rateText(rate) },
  { title: "Tokens per minute", isNumber: true, cell: ({ tokens_per_minute: rate }) => rateText(rate) },
  {
    title: "Permissions",
    cell: ({ admin, metrics }) => [admin && "admin", metrics && "metrics"].filter(Boolean).join(", ") || "use",
  },
  {
    title: "Actions",
    cell: ({ name }) => h("button", { class: "mini danger", "aria-label": `Remove the key of ${name}`,
      dataset: { act: "remove-key", name } }, "Remove"),
  },
];

/** @param {number | null} rate */
function rateText(rate) {
  return rate === null ? "the server's" : rate === 0 ? "no limit" : count(rate);
}

function makeForm() {
  const name = h("input", { id: "new-key-name", maxLength: 64, autocomplete: "off", autofocus: true, required: true });
  const models = h("input", { id: "new-key-models", autocomplete: "off", placeholder: "all, or qwen-*, phi-4" });
  const rates = Object.keys(RATES).map((rate) =>
    h("input", { id: `new-key-${rate}`, inputMode: "numeric", autocomplete: "off", placeholder: "the server's" }));
  const [admin, metrics] = ["admin", "metrics"].map((one) => h("input", { id: `new-key-${one}`, type: "checkbox" }));
  const error = h("p", { class: "error", role: "alert" });
  const wrong = () => {
    if (!/^[\w.-]{1,64}$/.test(name.value.trim())) {
      return { input: name, text: "A name has 1 to 64 letters, digits, dots, - and _." };
    }
    const input = rates.find(({ value }) => !/^\d{0,12}$/.test(value.trim()));
    return input && { input, text: "A limit is a whole number; 0 is no limit." };
  };
  const isGood = () => {
    const found = wrong();
    error.textContent = found?.text ?? "";
    found?.input.focus();
    return !found;
  };
  const value = () => ({
    name: name.value.trim(),
    models: models.value.split(",").map((model) => model.trim()).filter(Boolean),
    ...Object.fromEntries(Object.keys(RATES).map((rate, n) => [rate, rates[n].value.trim() && Number(rates[n].value)])
      .filter(([, limit]) => limit !== "")),
    admin: admin.checked,
    metrics: metrics.checked,
  });
  const body = [
    field("Name", name),
    field("Models", models),
    ...Object.values(RATES).map((label, n) => field(label, rates[n])),
    check("Admin: may see and control the whole server", admin),
    check("May read /metrics even if restricted to some models", metrics),
    error,
  ];
  /** @param {string} message */
  const fail = (message) => {
    error.textContent = message;
  };
  return { body, value, isGood, fail };
}

/**
 * @param {string} label
 * @param {HTMLInputElement} input
 */
function field(label, input) {
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input);
}

/**
 * @param {string} label
 * @param {HTMLInputElement} input
 */
function check(label, input) {
  return h("div", { class: "check" }, input, h("label", { for: input.id }, label));
}

/**
 * @param {string} name
 * @param {string} key
 */
async function showKey(name, key) {
  const props = { value: key, readOnly: true, "aria-label": `Key of ${name}`, class: "mono", autofocus: true };
  const shown = h("input", props);
  const body = [
    h("p", {}, "Copy it now: only its digest is stored, so that it is not shown again."),
    h("div", { class: "key-row" }, shown, copyButton("Copy the key", () => key)),
  ];
  shown.addEventListener("focus", () => shown.select());
  await dialog({ title: `The key of ${name}`, body });
}

/** @param {unknown} error */
function messageOf(error) {
  return error instanceof ApiError ? error.message : "The server does not respond.";
}
