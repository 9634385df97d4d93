// Random ids. `crypto.randomUUID` is missing in pages loaded over plain HTTP.

/** @param {number} size in bytes: two characters each */
export function randomName(size) {
  const bytes = crypto.getRandomValues(new Uint8Array(size));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
