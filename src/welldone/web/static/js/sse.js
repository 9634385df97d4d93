// Frames out of the bytes of a stream, however they are cut. Nothing is mended here: the inspector shows what came.

const END = /\r\n\r\n|\n\n|\r\r/g;
const encoder = new TextEncoder();

/** One frame as it came. */
export class Frame {
  /**
   * @param {{n: number, at: number, gap: number, byte: number, size: number, raw: string}} facts
   */
  constructor({ n, at, gap, byte, size, raw }) {
    /** From 1. */
    this.n = n;
    /** Milliseconds since the request began, when its last byte came. */
    this.at = at;
    /** Milliseconds since the frame before it; of the first, since the head of the reply. */
    this.gap = gap;
    /** Where it begins in the body. */
    this.byte = byte;
    this.size = size;
    this.raw = raw;
    const { event, data, isComment } = parse(raw);
    this.event = event;
    /** Its data lines, joined; null where it has none. */
    this.data = data;
    this.isComment = isComment;
  }

  /** The data as JSON; undefined where it is none. */
  get json() {
    if (this.data === null || this.data === "[DONE]") return undefined;
    try {
      return /** @type {unknown} */ (JSON.parse(this.data));
    } catch {
      return undefined;
    }
  }
}

/** Cuts a stream into the texts of its frames. */
export class Cutter {
  #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  #rest = "";

  /**
   * The frames that these bytes complete.
   *
   * @param {Uint8Array} bytes
   * @returns {string[]}
   */
  feed(bytes) {
    const text = this.#decoder.decode(bytes, { stream: true });
    // An end may lie across the cut: three characters before it are looked at once more.
    const from = Math.max(0, this.#rest.length - 3);
    this.#rest += text;
    return this.#take(from);
  }

  /**
   * What is left when the stream has ended.
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
 * How many bytes a text has on the wire.
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
