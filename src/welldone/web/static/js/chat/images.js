// Images of a message: read from files, reduced if they are large, and sent as data URLs. They are drawn on canvases:
// the content security policy of the page allows no other images.

import { h } from "../dom.js";
import { base64 } from "../files.js";
import { bytes } from "../format.js";

export const MAX_IMAGES = 4; // of a message: the body of a request may have 4 MiB by default
const MAX_FILE_BYTES = 20 * 2 ** 20; // a raw photo of a phone has less
const MAX_SIDE = 2_048; // pixels; models reduce larger images themselves
const MAX_BYTES = 700 * 2 ** 10; // sent unchanged up to this size: four of them fit into a request
const QUALITY = 0.85; // of reduced images, as JPEG
const THUMBNAIL_PX = 240; // height, for sharp screens
export const ACCEPTED = "image/png,image/jpeg,image/webp,image/gif";
const DATA_URL = /^data:image\/(?:png|jpeg|webp|gif);base64,[A-Za-z0-9+/]+={0,2}$/;
const MAGIC = /** @type {[RegExp, string][]} */ ([
  [/^\x89PNG\r\n\x1a\n/, "image/png"],
  [/^\xff\xd8\xff/, "image/jpeg"],
  [/^GIF8[79]a/, "image/gif"],
  [/^RIFF.{4}WEBP/s, "image/webp"],
]);

/** The image cannot be used; the message is for the user. */
export class ImageError extends Error {}

/**
 * Whether a text is the data URL of an image that the page could have made.
 *
 * @param {string} text
 */
export function isImage(text) {
  return text.length <= 2 * MAX_BYTES && DATA_URL.test(text);
}

/**
 * The image of a file as a data URL.
 *
 * @param {File} file
 * @returns {Promise<string>}
 */
export async function readImage(file) {
  const name = file.name || "The image";
  if (file.size > MAX_FILE_BYTES) {
    throw new ImageError(`${name} is too large: ${bytes(file.size)} of at most ${bytes(MAX_FILE_BYTES)}.`);
  }
  const type = typeOf(new Uint8Array(await file.slice(0, 16).arrayBuffer()));
  if (!type) throw new ImageError(`${name} is not an image: PNG, JPEG, WebP and GIF can be sent.`);
  const bitmap = await decode(file, name);
  const isSmall = file.size <= MAX_BYTES && Math.max(bitmap.width, bitmap.height) <= MAX_SIDE;
  const blob = isSmall ? new Blob([file], { type }) : await reduced(bitmap);
  bitmap.close();
  if (!blob || blob.size > MAX_BYTES) {
    throw new ImageError(`${name} is too large, even at ${MAX_SIDE} pixels and as JPEG. Crop it.`);
  }
  return `data:${blob.type};base64,${base64(new Uint8Array(await blob.arrayBuffer()))}`;
}

/**
 * The type of an image by its first bytes; "" if it is none.
 *
 * @param {Uint8Array} start
 */
export function typeOf(start) {
  const text = String.fromCharCode(...start);
  return MAGIC.find(([magic]) => magic.test(text))?.[1] ?? "";
}

/**
 * @param {Blob} blob
 * @param {string} name
 */
async function decode(blob, name) {
  try {
    return await createImageBitmap(blob);
  } catch {
    throw new ImageError(`${name} is damaged, or too large to read.`);
  }
}

/**
 * @param {ImageBitmap} bitmap
 * @returns {Promise<Blob | null>}
 */
function reduced(bitmap) {
  const { width, height } = bitmap;
  const share = Math.min(1, MAX_SIDE / Math.max(width, height));
  /** @param {number} side */
  const scaled = (side) => Math.max(1, Math.round(side * share));
  const canvas = h("canvas", { width: scaled(width), height: scaled(height) });
  const context = canvas.getContext("2d");
  if (!context) return Promise.resolve(null);
  context.fillStyle = "white"; // JPEG has no transparency
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", QUALITY));
}

/**
 * A small picture of an image.
 *
 * @param {string} url data URL
 * @param {string} label
 */
export function makeThumbnail(url, label) {
  const canvas = h("canvas", { class: "thumbnail", width: 1, height: 1, role: "img", "aria-label": label });
  void draw(canvas, url);
  return canvas;
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {string} url
 */
async function draw(canvas, url) {
  try {
    const [head, data] = url.split(",");
    const blob = new Blob([Uint8Array.from(atob(data), (one) => one.charCodeAt(0))], { type: head.slice(5, -7) });
    const bitmap = await createImageBitmap(blob, { resizeHeight: THUMBNAIL_PX, resizeQuality: "medium" });
    Object.assign(canvas, { width: bitmap.width, height: bitmap.height });
    canvas.getContext("2d")?.drawImage(bitmap, 0, 0);
    bitmap.close();
  } catch {
    canvas.classList.add("is-broken");
    canvas.setAttribute("aria-label", "An image that cannot be shown");
  }
}
