// Copying.

/**
 * Put a text on the clipboard; false where the browser does not let us.
 *
 * @param {string} text
 * @returns {Promise<boolean>}
 */
export async function copy(text) {
  // Browsers have `clipboard` only where the page is local or came by HTTPS.
  if (!navigator.clipboard) return copyBySelection(text);
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

/** @param {string} text */
function copyBySelection(text) {
  const focused = document.activeElement;
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "sr-only";
  // Within an open dialog, since nothing outside of it can be selected.
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return isCopied;
}
