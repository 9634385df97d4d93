// JSON as text, of values that servers made.

const TOO_DEEP = "(nested too deep to be written)";

/**
 * A browser reads JSON of any depth, but can only write so much of it before its stack ends.
 *
 * @param {unknown} value
 * @param {number} [indent]
 * @returns {string}
 */
export function jsonText(value, indent) {
  try {
    return JSON.stringify(value, null, indent) ?? "";
  } catch (error) {
    if (error instanceof RangeError) return TOO_DEEP;
    throw error;
  }
}
