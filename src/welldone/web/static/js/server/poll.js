// Asks again and again, one question at a time, and less often while there is no answer.

/** A question that got no answer for so long is given up: the server is on this machine, or near. */
const PATIENCE_MS = 15_000;
const MOST_PAUSE_MS = 30_000; // so that the page finds a server that is back within half a minute

export class Poller {
  #ask;
  #trouble;
  #pause;
  /** @type {AbortController | null} Of the round that runs; null: none does. */
  #round = null;

  /**
   * @param {object} how
   * @param {(signal: AbortSignal) => Promise<void>} how.ask
   * @param {(error: unknown, pauseMs: number) => void} how.trouble is told of each failure, and when it goes on
   * @param {number} how.pauseMs between an answer and the next question
   */
  constructor({ ask, trouble, pauseMs }) {
    this.#ask = ask;
    this.#trouble = trouble;
    this.#pause = pauseMs;
  }

  /** Ask now, and go on. */
  start() {
    if (this.#round !== null) return;
    this.#round = new AbortController();
    void this.#go(this.#round.signal);
  }

  /** What is under way is given up. */
  stop() {
    this.#round?.abort();
    this.#round = null;
  }

  /** Do not wait for the next question. */
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
        await within(PATIENCE_MS, signal, this.#ask);
        failures = 0;
      } catch (error) {
        if (signal.aborted) return;
        failures += 1;
        pause = Math.min(this.#pause * 2 ** (failures - 1), MOST_PAUSE_MS);
        this.#trouble(error, pause);
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
  const timer = setTimeout(() => one.abort(new Error("It took too long.")), ms);
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
