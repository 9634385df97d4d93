// Names that nobody can guess. `crypto.randomUUID` is missing where the page comes by plain HTTP.

/** @param {number} size in bytes: two letters each */
export function randomName(size) {
  const bytes = crypto.getRandomValues(new Uint8Array(size));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
