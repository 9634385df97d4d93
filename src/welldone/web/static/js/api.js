// Requests to the server that the page came from, with the key where one is needed.

import { askKey, forgetKey, key } from "./key.js";

/** A reply that is an error, in the server's own words. */
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
    /** The reply as it came. */
    this.body = body;
  }
}

// The server's own words are for those who write clients.
const WHOSE_KEY = "Whoever runs the server has one: of --api-key, or of a [keys] table in welldone.toml.";
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
      // Another request may have got a key meanwhile.
      if (sent !== key()) continue;
      forgetKey();
      if ((await askKey(WHOSE_KEY)) === null) throw new ApiError(NO_KEY, error);
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
    return new ApiError(`The server answered ${reply.status}.`, facts);
  }
}
