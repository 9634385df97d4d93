// Time series: increases of counters and quantiles of histograms.

/** @import { Metrics, Sample } from "./prometheus.js" */

/** @typedef {Map<number, number>} Buckets cumulative counts by upper bound */

/**
 * Ring buffer.
 *
 * @template T
 */
export class Ring {
  #size;

  /** @param {number} size */
  constructor(size) {
    this.#size = size;
    /** @type {T[]} Oldest first. */
    this.items = [];
  }

  /** @param {T} item */
  push(item) {
    this.items.push(item);
    if (this.items.length > this.#size) this.items.shift();
  }
}

/**
 * Increase of each series of a counter between two pages. A new series started at zero; so did one that decreased,
 * since the server was restarted.
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
 * The buckets of a histogram, summed over all series.
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
 * Quantile `q` by linear interpolation within a bucket, like histogram_quantile() of Prometheus. Null without
 * observations. Observations above the last finite bound count as that bound.
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
