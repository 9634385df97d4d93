// Output speed.

/**
 * Tokens per second between the first and the last token (TTFT excluded). Null if they arrived at once, or without a
 * token count.
 *
 * @param {number | null} tokens
 * @param {number | null} firstAt milliseconds
 * @param {number | null} lastAt
 */
export function tokensPerSecond(tokens, firstAt, lastAt) {
  if (tokens === null || firstAt === null || lastAt === null) return null;
  return tokens > 1 && lastAt > firstAt ? ((tokens - 1) / (lastAt - firstAt)) * 1000 : null;
}
