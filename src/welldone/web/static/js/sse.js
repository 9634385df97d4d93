// Splits the bytes of a stream into SSE frames, without any repair: the inspector shows exactly what was received.

const END = /\r\n\r\n|\n\n|\r\r/g;
const encoder = new TextEncoder();

/** One frame as received. */
export class Frame {
  /**
   * @param {{n: number, at: number, gap: number, byte: number, size: number, raw: string}} facts
   */
  constructor({ n, at, gap, byte, size, raw }) {
    /** Number, from 1. */
    this.n = n;
    /** When its last byte arrived, in milliseconds since the start of the request. */
    this.at = at;
    /** Milliseconds since the previous frame, or since the response headers. */
    this.gap = gap;
    /** Offset in the body. */
    this.byte = byte;
    this.size = size;
    this.raw = raw;
    const { event, data, isComment } = parse(raw);
    this.event = event;
    /** Its data lines, joined; null if it has none. */
    this.data = data;
    this.isComment = isComment;
  }

  /** The data as JSON; undefined if it is not JSON. */
  get json() {
    if (this.data === null || this.data === "[DONE]") return undefined;
    try {
      return /** @type {unknown} */ (JSON.parse(this.data));
    } catch {
      return undefined;
    }
  }
}

/** Splits a stream into the texts of its frames. */
export class Cutter {
  #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  #rest = "";

  /**
   * Returns the frames that these bytes complete.
   *
   * @param {Uint8Array} bytes
   * @returns {string[]}
   */
  feed(bytes) {
    const text = this.#decoder.decode(bytes, { stream: true });
    // The end of a frame may be split between two reads: scan the last three characters again.
    const from = Math.max(0, this.#rest.length - 3);
    this.#rest += text;
    return this.#take(from);
  }

  /**
   * Returns the rest at the end of the stream.
   *
   * @returns {string[]}
   */
  close() {
    this.#rest += this.#decoder.decode();
    const frames = this.#take(0);
    if (this.#rest) frames.push(this.#rest);
    this.#rest = "";
    return frames;
  }

  /** @param {number} from */
  #take(from) {
    const frames = [];
    let start = 0;
    END.lastIndex = from;
    while (END.exec(this.#rest)) {
      frames.push(this.#rest.slice(start, END.lastIndex));
      start = END.lastIndex;
    }
    if (start) this.#rest = this.#rest.slice(start);
    return frames;
  }
}

/**
 * Size of a text in UTF-8.
 *
 * @param {string} text
 */
export function sizeOf(text) {
  return encoder.encode(text).length;
}

/**
 * The fields of a frame.
 *
 * @param {string} raw
 */
function parse(raw) {
  let event = "";
  /** @type {string[]} */
  const data = [];
  let comments = 0;
  let fields = 0;
  for (const line of raw.split(/\r\n|\n|\r/)) {
    if (line.startsWith(":")) comments += 1;
    else if (line) fields += 1;
    const [name, value] = field(line);
    if (name === "data") data.push(value);
    else if (name === "event") event = value;
  }
  return { event, data: data.length ? data.join("\n") : null, isComment: comments > 0 && fields === 0 };
}

/** @param {string} line */
function field(line) {
  const colon = line.indexOf(":");
  if (colon < 0) return [line, ""];
  const value = line.slice(colon + 1);
  return [line.slice(0, colon), value.startsWith(" ") ? value.slice(1) : value];
}
