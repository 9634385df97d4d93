// How fast a model speaks.

/**
 * Tokens per second, of the time between the first and the last: how long the first one took is another figure. Null
 * where they came at once, or nobody counted them.
 *
 * @param {number | null} tokens
 * @param {number | null} firstAt milliseconds
 * @param {number | null} lastAt
 */
export function tokensPerSecond(tokens, firstAt, lastAt) {
  if (tokens === null || firstAt === null || lastAt === null) return null;
  return tokens > 1 && lastAt > firstAt ? ((tokens - 1) / (lastAt - firstAt)) * 1000 : null;
}
