// Dialogs, and short messages that go away by themselves.

/**
 * @param {string} message
 * @param {"info" | "error"} [kind]
 */
export function toast(message, kind = "info") {
  console.info(kind, message);
}
