// Serialization of untrusted values.

const TOO_DEEP = "(nested too deeply)";

/**
 * JSON.parse accepts deeper nesting than JSON.stringify, which overflows the stack.
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
