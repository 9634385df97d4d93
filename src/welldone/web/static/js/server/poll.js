// Polls one request at a time, with exponential backoff while requests fail.

/** Timeout of a request: the server is local or near. */
const TIMEOUT_MS = 15_000;
const MAX_PAUSE_MS = 30_000; // so that a restarted server is found within half a minute

export class Poller {
  #ask;
  #onFailure;
  #pause;
  /** @type {AbortController | null} Of the running loop; null: stopped. */
  #round = null;

  /**
   * @param {object} options
   * @param {(signal: AbortSignal) => Promise<void>} options.ask
   * @param {(error: unknown, pauseMs: number) => void} options.onFailure called at each failure
   * @param {number} options.pauseMs between a response and the next request
   */
  constructor({ ask, onFailure, pauseMs }) {
    this.#ask = ask;
    this.#onFailure = onFailure;
    this.#pause = pauseMs;
  }

  /** Poll now, then regularly. */
  start() {
    if (this.#round !== null) return;
    this.#round = new AbortController();
    void this.#go(this.#round.signal);
  }

  /** Stop, and abort a running request. */
  stop() {
    this.#round?.abort();
    this.#round = null;
  }

  /** Poll now. */
  hurry() {
    if (this.#round === null) return;
    this.stop();
    this.start();
  }

  /** @param {AbortSignal} signal */
  async #go(signal) {
    let failures = 0;
    while (!signal.aborted) {
      let pause = this.#pause;
      try {
        await within(TIMEOUT_MS, signal, this.#ask);
        failures = 0;
      } catch (error) {
        if (signal.aborted) return;
        failures += 1;
        pause = Math.min(this.#pause * 2 ** (failures - 1), MAX_PAUSE_MS);
        this.#onFailure(error, pause);
      }
      await sleep(pause, signal);
    }
  }
}

/**
 * @param {number} ms
 * @param {AbortSignal} signal
 * @param {(signal: AbortSignal) => Promise<void>} act
 */
async function within(ms, signal, act) {
  const one = new AbortController();
  const timer = setTimeout(() => one.abort(new Error("The request timed out.")), ms);
  const stop = () => one.abort();
  signal.addEventListener("abort", stop);
  try {
    await act(one.signal);
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
  }
}

/**
 * @param {number} ms
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 */
function sleep(ms, signal) {
  if (signal.aborted) return Promise.resolve();
  return new Promise((wake) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      wake();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener("abort", end);
  });
}
