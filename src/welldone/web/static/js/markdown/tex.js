// Parser of a subset of TeX's formulas: a recursive descent to a tree of MathML Core. The length and the depth are
// bounded, and each token is read once.

import { visible } from "../text.js";
import * as tex from "./symbols.js";

/** @typedef {{tag: string, attributes: Record<string, string>, children: (MathTree | string)[]}} MathTree */

/** Longer formulas are shown as source: more than a page of TeX. */
export const MAX_FORMULA = 2_000;
const MAX_DEPTH = 32; // deeper than people nest
const TOKEN = /\s*(\\(?:[a-zA-Z]+|[^])|[^]|$)/uy;
const ENDS = new Set(["", "}", "&", "\\\\", "\\right", "\\middle", "\\end", "\\cr"]);
const DISTANCE = /^\s*-?[\d.]+\s*[a-z]{2}\s*$/; // of the next row
const THIN = "0.167em";
const SIZES = new Map([["big", "1.2em"], ["Big", "1.8em"], ["bigg", "2.4em"], ["Bigg", "3em"]]);
/** Environments: opening and closing fence, and the class of the table. */
const ENVIRONMENTS = new Map([
  ["matrix", ["", "", ""]], ["smallmatrix", ["", "", ""]], ["array", ["", "", ""]], ["pmatrix", ["(", ")", ""]],
  ["bmatrix", ["[", "]", ""]], ["Bmatrix", ["{", "}", ""]], ["vmatrix", ["|", "|", ""]], ["Vmatrix", ["‖", "‖", ""]],
  ["cases", ["{", "", "md-cases"]], ["gather", ["", "", "md-lines"]], ["gathered", ["", "", "md-lines"]],
  ["equation", ["", "", "md-lines"]], ["aligned", ["", "", "md-aligned"]], ["align", ["", "", "md-aligned"]],
  ["split", ["", "", "md-aligned"]], ["alignat", ["", "", "md-aligned"]],
]);

/** A formula outside of the subset. */
class Unsupported extends Error {}

/**
 * The MathML of a formula as a tree of plain values; null if it is not in the subset.
 *
 * @param {string} body TeX without delimiters
 * @param {boolean} isDisplay
 * @returns {MathTree | null}
 */
export function toTree(body, isDisplay) {
  if (body.length > MAX_FORMULA || !body.trim()) return null;
  try {
    const formula = new Parser(body).formula();
    const source = node("annotation", [visible(body.trim())], { encoding: "application/x-tex" });
    const display = isDisplay ? "block" : "inline";
    return node("math", [node("semantics", [formula, source])], { display, dir: "ltr" });
  } catch (error) {
    if (error instanceof Unsupported) return null;
    throw error;
  }
}

/**
 * @param {string} tag
 * @param {(MathTree | string)[]} children
 * @param {Record<string, string>} [attributes]
 * @returns {MathTree}
 */
function node(tag, children, attributes = {}) {
  return { tag, attributes, children };
}

/** @param {MathTree[]} nodes */
const group = (nodes) => (nodes.length === 1 ? nodes[0] : node("mrow", nodes));

/** @param {string} width */
const space = (width) => node("mspace", [], { width });

/**
 * @param {string} text
 * @param {Record<string, string>} [attributes]
 */
const operator = (text, attributes = {}) => node("mo", [text], attributes);

/** A sign without space around it that does not grow. @param {string} text */
const bracket = (text) => operator(text, { stretchy: "false", lspace: "0", rspace: "0" });

/** @param {string} text */
const upright = (text) => node("mi", [text], { mathvariant: "normal" });

/**
 * A fence that grows with its content; nothing for an empty one.
 *
 * @param {string} text
 * @param {"prefix" | "infix" | "postfix"} form
 */
const fence = (text, form) => (text ? [operator(text, { form, fence: "true", stretchy: "true" })] : []);

/**
 * Whether a sign after this node has no left operand.
 *
 * @param {MathTree | undefined} before
 */
function isOpen(before) {
  if (before?.tag === "mspace") return false;
  return !before || (before.tag === "mo" && !/^[)\]}!|‖⟩⌉⌋]$/.test(String(before.children[0])));
}

class Parser {
  #at = 0;
  #depth = 0;
  /** The next token; empty at the end. */
  #token = "";

  /** @param {string} text */
  constructor(text) {
    this.text = text;
    this.#next();
  }

  /** Everything, in one or several lines. */
  formula() {
    const rows = this.#rows();
    if (this.#token) throw new Unsupported();
    if (rows.length === 1 && rows[0].length === 1) return rows[0][0];
    return makeTable(rows, rows.some((row) => row.length > 1) ? "md-aligned" : "md-lines");
  }

  /** Move to the next token, and return the one before it. */
  #next() {
    const before = this.#token;
    TOKEN.lastIndex = this.#at;
    this.#token = TOKEN.exec(this.text)?.[1] ?? "";
    this.#at = TOKEN.lastIndex;
    return before;
  }

  /** @param {string} token */
  #expect(token) {
    if (this.#next() !== token) throw new Unsupported();
  }

  /**
   * @template T
   * @param {() => T} parse
   * @returns {T}
   */
  #nested(parse) {
    if (this.#depth === MAX_DEPTH) throw new Unsupported();
    this.#depth += 1;
    const parsed = parse();
    this.#depth -= 1;
    return parsed;
  }

  /**
   * Nodes up to a token that ends a row, which is not consumed.
   *
   * @param {string} [end] one more of these
   */
  #row(end = "") {
    /** @type {MathTree[]} */
    const nodes = [];
    while (!ENDS.has(this.#token) && this.#token !== end) {
      if (/^\\(?:display|text)style$/.test(this.#token)) {
        const displaystyle = String(this.#next() === "\\displaystyle");
        nodes.push(node("mstyle", [this.#nested(() => this.#row(end))], { displaystyle, scriptlevel: "0" }));
      } else if (tex.IGNORED.has(this.#token.slice(1)) && this.#token[0] === "\\") this.#next();
      else nodes.push(this.#scripts(this.#atom(nodes[nodes.length - 1])));
    }
    return group(nodes);
  }

  /** Rows of cells. */
  #rows() {
    /** @type {MathTree[][]} */
    const rows = [[this.#row()]];
    while (/^(?:&|\\\\|\\cr)$/.test(this.#token)) {
      if (this.#next() === "&") rows[rows.length - 1].push(this.#row());
      else {
        if (this.#token === "[" && !DISTANCE.test(this.#raw("]"))) throw new Unsupported();
        rows.push([this.#row()]);
      }
    }
    const last = rows[rows.length - 1];
    const isEmpty = last.length === 1 && last[0].tag === "mrow" && last[0].children.length === 0;
    return isEmpty && rows.length > 1 ? rows.slice(0, -1) : rows;
  }

  /** A group in braces, or one token with what it takes. */
  #argument() {
    return this.#nested(() => {
      if (this.#token === "{") return this.#braces();
      if (ENDS.has(this.#token) || /^[\^_']$/.test(this.#token)) throw new Unsupported();
      return /^\d$/.test(this.#token) ? node("mn", [this.#next()]) : this.#atom();
    });
  }

  #braces() {
    this.#expect("{");
    const row = this.#row();
    this.#expect("}");
    return row;
  }

  /**
   * The text up to a closing sign, as it is; the current token opens it.
   *
   * @param {"}" | "]"} close
   */
  #raw(close) {
    if (this.#token !== (close === "}" ? "{" : "[")) throw new Unsupported();
    const end = this.text.indexOf(close, this.#at);
    const text = this.text.slice(this.#at, end);
    if (end < 0 || /[{\\$]/.test(text.replace(/\\[%$#&_ ]/g, ""))) throw new Unsupported();
    this.#at = end + 1;
    this.#next();
    return text.replace(/\\(.)/g, "$1");
  }

  /** A text whose spaces are kept. */
  #text() {
    return node("mtext", [visible(this.#raw("}")).replace(/\s+/g, "\u00a0")]);
  }

  /**
   * A base with its superscript and subscript.
   *
   * @param {MathTree} base
   */
  #scripts(base) {
    let isBelow = base.attributes.movablelimits === "true" || base.attributes.class === "md-brace";
    while (/^\\(?:no)?limits$/.test(this.#token)) {
      isBelow = this.#next() === "\\limits";
      if (base.tag === "mo") base.attributes.movablelimits = "false";
    }
    /** @type {MathTree | null} */
    let below = null;
    /** @type {MathTree | null} */
    let above = null;
    while (/^[\^_']$/.test(this.#token)) {
      if (this.#token === "_") {
        if (below) throw new Unsupported();
        this.#next();
        below = this.#argument();
        continue;
      }
      if (above) throw new Unsupported();
      let primes = "";
      while (this.#token === "'") primes += this.#next() && "′";
      const marks = primes ? [operator(primes)] : [];
      if (this.#token === "^") {
        this.#next();
        above = group([...marks, this.#argument()]);
      } else above = group(marks);
    }
    if (below && above) return node(isBelow ? "munderover" : "msubsup", [base, below, above]);
    if (below) return node(isBelow ? "munder" : "msub", [base, below]);
    return above ? node(isBelow ? "mover" : "msup", [base, above]) : base;
  }

  /**
   * @param {MathTree} [before] the node before it in the row
   * @returns {MathTree}
   */
  #atom(before) {
    const token = this.#token;
    if (token === "{") return this.#nested(() => this.#braces());
    if (/^[\^_']$/.test(token)) return node("mrow", []); // a script without a base
    this.#next();
    if (token[0] === "\\") return this.#command(token.slice(1), before);
    if (/^\d$/.test(token)) return this.#number(token);
    if (token === "~") return space("0.25em");
    if (token === "-" || token === "+") return sign(token === "-" ? "−" : "+", before);
    if (/^[()[\]|.?]$/.test(token)) return bracket(token);
    if (/^[=<>/,;:!*]$/.test(token)) return operator(token === "*" ? "∗" : token);
    if (/^\p{L}$/u.test(token)) return node("mi", [token]);
    // Characters beyond ASCII: ∑, ≤, ². Invisible ones are not in the subset.
    if (/^[\p{S}\p{P}]$/u.test(token) && token > "\x7f") return operator(token);
    if (/^\p{N}$/u.test(token)) return node("mn", [token]);
    throw new Unsupported();
  }

  /** @param {string} first */
  #number(first) {
    let text = first;
    // Within the text: a space ends a number.
    while (/^[\d.]$/.test(this.#token) && this.text[this.#at - 2] === text[text.length - 1]) {
      if (this.#token === "." && (text.includes(".") || !/\d/.test(this.text[this.#at] ?? ""))) break;
      text += this.#next();
    }
    return node("mn", [text]);
  }

  /**
   * @param {string} name
   * @param {MathTree | undefined} before
   * @returns {MathTree}
   */
  #command(name, before) {
    const letter = tex.LETTERS.get(name);
    if (letter) return node("mi", [letter]);
    const other = tex.UPRIGHT.get(name);
    if (other) return upright(other);
    if (name === "pm" || name === "mp") return sign(name === "pm" ? "±" : "∓", before);
    const infix = tex.OPERATORS.get(name);
    if (infix) return operator(infix);
    const sum = tex.SUMS.get(name);
    if (sum) return operator(sum, { movablelimits: "true" });
    const integral = tex.INTEGRALS.get(name);
    if (integral) return operator(integral);
    const width = tex.SPACES.get(name);
    if (width) return space(width);
    if (tex.FUNCTIONS.has(name) || tex.LIMITS.has(name)) return this.#function(name, tex.LIMITS.has(name), before);
    const delimiter = tex.FENCES.get(name === "|" ? "||" : name);
    if (delimiter) return bracket(delimiter);
    const alphabet = tex.alphabetOf(name);
    if (alphabet) return this.#alphabet(alphabet);
    const accent = tex.OVER.get(name) ?? tex.UNDER.get(name);
    if (accent) return this.#accent(name, accent, tex.OVER.has(name));
    const size = /^([bB]igg?)[lrm]?$/.exec(name);
    if (size) {
      const minsize = /** @type {string} */ (SIZES.get(size[1]));
      return operator(this.#delimiter(), { minsize, maxsize: minsize, stretchy: "true", lspace: "0", rspace: "0" });
    }
    return this.#structure(name, before);
  }

  /**
   * @param {string} name
   * @param {MathTree | undefined} before
   * @returns {MathTree}
   */
  #structure(name, before) {
    switch (name) {
      case "frac":
        return node("mfrac", [this.#argument(), this.#argument()]);
      case "dfrac":
      case "cfrac":
      case "tfrac": {
        const isSmall = name === "tfrac";
        const fraction = node("mfrac", [this.#argument(), this.#argument()]);
        return node("mstyle", [fraction], { displaystyle: String(!isSmall), scriptlevel: isSmall ? "1" : "0" });
      }
      case "binom":
      case "dbinom":
      case "tbinom": {
        const pair = node("mfrac", [this.#argument(), this.#argument()], { linethickness: "0" });
        return node("mrow", [...fence("(", "prefix"), pair, ...fence(")", "postfix")]);
      }
      case "sqrt":
        return this.#root();
      case "left":
        return this.#nested(() => this.#fenced());
      case "begin":
        return this.#nested(() => this.#environment());
      case "text":
      case "textrm":
      case "mbox":
        return this.#text();
      case "operatorname": {
        const hasLimits = this.#token === "*" && Boolean(this.#next());
        return this.#function(visible(this.#raw("}")), hasLimits, before);
      }
      case "boxed":
        return node("mrow", [this.#argument()], { class: "md-boxed" });
      case "tag":
        return node("mrow", [space("2em"), node("mtext", [`(${visible(this.#raw("}"))})`])]);
      case "pmod": {
        const parts = [operator("mod", { lspace: "0", rspace: THIN }), this.#argument()];
        return node("mrow", [space("1em"), operator("("), ...parts, operator(")")]);
      }
      case "not": {
        const negated = this.#argument();
        const [text] = negated.children;
        if (negated.tag !== "mo" || typeof text !== "string") throw new Unsupported();
        return operator(`${text}\u0338`.normalize("NFC"));
      }
      case "stackrel":
      case "overset":
      case "underset": {
        const script = this.#argument();
        return node(name === "underset" ? "munder" : "mover", [this.#argument(), script]);
      }
      case "xrightarrow":
      case "xleftarrow":
        return node("mover", [operator(name === "xrightarrow" ? "→" : "←", { stretchy: "true" }), this.#argument()]);
      default:
        throw new Unsupported();
    }
  }

  /**
   * The name of a function. A thin space separates it from an operand without brackets.
   *
   * @param {string} name
   * @param {boolean} hasLimits
   * @param {MathTree | undefined} before
   */
  #function(name, hasLimits, before) {
    const rspace = /^[([]$|^\\left$/.test(this.#token) || ENDS.has(this.#token) ? "0" : THIN;
    return operator(name.replace(/^(lim|arg)(?=[a-z])/, "$1\u00a0"), {
      form: "prefix", lspace: isOpen(before) ? "0" : THIN, rspace, ...(hasLimits ? { movablelimits: "true" } : {}),
    });
  }

  /** @param {string} alphabet */
  #alphabet(alphabet) {
    const word = /[A-Za-z]{2,}\}/y;
    word.lastIndex = this.#at;
    const isWord = alphabet === "mathrm" && this.#token === "{" && word.test(this.text);
    if (isWord) return node("mi", [this.#raw("}")]); // of several letters: upright
    return styled(this.#argument(), alphabet);
  }

  /**
   * @param {string} name
   * @param {string} mark
   * @param {boolean} isOver
   */
  #accent(name, mark, isOver) {
    const isBrace = name.endsWith("brace");
    const line = operator(mark, { stretchy: String(tex.STRETCHED.test(name)) });
    const attributes = { [isOver ? "accent" : "accentunder"]: "true", ...(isBrace ? { class: "md-brace" } : {}) };
    return node(isOver ? "mover" : "munder", [this.#argument(), line], attributes);
  }

  #root() {
    if (this.#token !== "[") return node("msqrt", [this.#argument()]);
    this.#next();
    const index = this.#nested(() => this.#row("]"));
    this.#expect("]");
    return node("mroot", [this.#argument(), index]);
  }

  /** A delimiter after `\left`, `\right` or `\big`; empty for `.`. */
  #delimiter() {
    const token = this.#next();
    if (token === ".") return "";
    const text = token === "\\|" ? "‖" : tex.FENCES.get(token.replace(/^\\/, ""));
    if (!text) throw new Unsupported();
    return text;
  }

  #fenced() {
    const parts = [...fence(this.#delimiter(), "prefix"), this.#row()];
    while (this.#token === "\\middle") {
      this.#next();
      parts.push(...fence(this.#delimiter(), "infix"), this.#row());
    }
    this.#expect("\\right");
    return node("mrow", [...parts, ...fence(this.#delimiter(), "postfix")]);
  }

  #environment() {
    const name = this.#raw("}");
    const found = ENVIRONMENTS.get(name.replace(/\*$/, ""));
    if (!found) throw new Unsupported();
    if (name === "array" || name.startsWith("alignat")) this.#raw("}"); // columns
    const rows = this.#rows();
    this.#expect("\\end");
    if (this.#raw("}") !== name) throw new Unsupported();
    const [open, close, className] = found;
    const table = makeTable(rows, className);
    if (!open) return table;
    return node("mrow", [...fence(open, "prefix"), table, ...fence(close, "postfix")]);
  }
}

/**
 * A plus or minus: unary without a left operand.
 *
 * @param {string} text
 * @param {MathTree | undefined} before
 */
function sign(text, before) {
  return operator(text, isOpen(before) ? { form: "prefix" } : {});
}

/**
 * @param {MathTree[][]} rows
 * @param {string} className
 */
function makeTable(rows, className) {
  const lines = rows.map((row) => node("mtr", row.map((cell) => node("mtd", [cell]))));
  if (!className) return node("mtable", lines);
  return node("mtable", lines, { class: className, displaystyle: String(className !== "md-cases") });
}

/**
 * The identifiers and numbers of a tree in an alphabet.
 *
 * @param {MathTree} tree
 * @param {string} alphabet
 * @returns {MathTree}
 */
function styled(tree, alphabet) {
  const { tag, attributes, children } = tree;
  const [text] = children;
  if ((tag === "mi" || tag === "mn") && typeof text === "string") {
    const isItalic = tag === "mn" || alphabet === "mathit";
    const shown = isItalic ? attributes : { ...attributes, mathvariant: "normal" };
    return node(tag, [tex.inAlphabet(text, alphabet)], shown);
  }
  return node(tag, children.map((child) => (typeof child === "string" ? child : styled(child, alphabet))), attributes);
}
