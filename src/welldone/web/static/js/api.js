// Requests to the server of this page, with the API key if it needs one.

import { askKey, forgetKey, key } from "./key.js";

/** An error response, with the message of the server. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {{status: number, code?: string | null, headers?: [string, string][], body?: string}} facts
   */
  constructor(message, { status, code = null, headers = [], body = "" }) {
    super(message);
    this.status = status;
    this.code = code;
    this.headers = headers;
    /** The response body. */
    this.body = body;
  }
}

// Instead of the server's message, which is for developers of clients.
const KEY_SOURCE = "The operator of the server has set it with --api-key, or in a [keys] table of welldone.toml.";
const NO_KEY = "This server needs a key.";

/**
 * @param {URL} base
 * @returns {Pick<Page, "api" | "json">}
 */
export function makeApi(base) {
  /** @type {Page["api"]} */
  async function api(path, options = {}) {
    for (;;) {
      const sent = key();
      const reply = await ask(base, path, options);
      if (reply.ok) return reply;
      const error = await readError(reply);
      if (reply.status !== 401) throw error;
      // Another request may have asked for the key in the meantime.
      if (sent !== key()) continue;
      forgetKey();
      if ((await askKey(KEY_SOURCE)) === null) throw new ApiError(NO_KEY, error);
    }
  }

  return { api, json: async (path, options) => (await api(path, options)).json() };
}

/**
 * @param {URL} base
 * @param {string} path
 * @param {ApiOptions} options
 */
function ask(base, path, { method, json, signal, headers = {} }) {
  const secret = key();
  return fetch(new URL(path, base), {
    method: method ?? (json === undefined ? "GET" : "POST"),
    body: json === undefined ? undefined : JSON.stringify(json),
    headers: {
      ...headers,
      ...(json === undefined ? {} : { "Content-Type": "application/json" }),
      ...(secret === null ? {} : { Authorization: `Bearer ${secret}` }),
    },
    signal: signal ?? null,
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
  });
}

/** @param {Response} reply */
async function readError(reply) {
  const body = await reply.text();
  const headers = /** @type {[string, string][]} */ ([...reply.headers.entries()]);
  const facts = { status: reply.status, headers, body };
  try {
    const { error } = JSON.parse(body);
    return new ApiError(String(error.message), { ...facts, code: error.code ?? null });
  } catch {
    return new ApiError(`The server returned ${reply.status}.`, facts);
  }
}
