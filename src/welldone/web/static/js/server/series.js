// Numbers over time: what has come to counters, and quantiles of histograms.

/** @import { Metrics, Sample } from "./prometheus.js" */

/** @typedef {Map<number, number>} Buckets how many were at most so much */

/**
 * The last so many of something.
 *
 * @template T
 */
export class Ring {
  #size;

  /** @param {number} size */
  constructor(size) {
    this.#size = size;
    /** @type {T[]} The oldest first. */
    this.items = [];
  }

  /** @param {T} item */
  push(item) {
    this.items.push(item);
    if (this.items.length > this.#size) this.items.shift();
  }
}

/**
 * What has come to each series of a counter between two pages. One that was not there has begun at zero, and so has one
 * that is less than before: the server was started again.
 *
 * @param {Metrics} before
 * @param {Metrics} now
 * @param {string} name
 * @returns {Sample[]}
 */
export function increases(before, now, name) {
  const old = before.get(name);
  return [...(now.get(name) ?? [])].map(([key, { labels, value }]) => {
    const was = old?.get(key)?.value ?? 0;
    return { labels, value: value < was ? value : value - was };
  });
}

/** @param {Iterable<Sample>} samples */
export function sum(samples) {
  let total = 0;
  for (const { value } of samples) total += value;
  return total;
}

/**
 * The buckets of a histogram, of all its series together.
 *
 * @param {Iterable<Sample>} samples
 * @returns {Buckets}
 */
export function bucketsOf(samples) {
  /** @type {Buckets} */
  const buckets = new Map();
  for (const { labels, value } of samples) {
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    buckets.set(bound, (buckets.get(bound) ?? 0) + value);
  }
  return buckets;
}

/**
 * The value that a share `q` of all is at most, as if those of a bucket were spread evenly over it. Null where nothing
 * was counted. What is above the last bound counts as that bound: nobody knows more.
 *
 * @param {Buckets} buckets
 * @param {number} q
 */
export function quantile(buckets, q) {
  const bounds = [...buckets].sort(([one], [other]) => one - other);
  const rank = q * (bounds.at(-1)?.[1] ?? 0);
  if (rank <= 0) return null;
  let [low, below] = [0, 0];
  for (const [bound, count] of bounds) {
    if (count >= rank) return bound === Infinity ? low : low + ((bound - low) * (rank - below)) / (count - below);
    [low, below] = [bound, count];
  }
  return low;
}
