// Syntax highlighting of code, line by line: only comments, strings, numbers, keywords and names. A line is read once,
// from the state in which the line before it ended, so that a growing block is never read again.

/** @typedef {"comment" | "string" | "number" | "keyword" | "name" | "added" | "removed" | ""} Kind "" is plain text */
/** @typedef {[kind: Kind, text: string]} Token */

/**
 * @typedef {object} Language
 * @property {string} [line] pattern of what starts a comment up to the end of the line
 * @property {[start: string, end: string, kind: Kind][]} [blocks] patterns of what may span lines
 * @property {string} [quotes] characters that enclose strings
 * @property {string} [names] pattern of names: properties, variables, tags
 * @property {Set<string>} [keywords]
 * @property {boolean} [ignoresCase]
 */

const LONGEST_LINE = 2_000; // characters: nobody reads longer lines

/** @param {string} text */
const words = (text) => new Set(text.split(" "));

const C_BLOCKS = /** @type {[string, string, Kind][]} */ ([["/\\*", "\\*/", "comment"]]);
const C_WORDS =
  "abstract as async auto await base bool boolean break byte case catch char class const constexpr continue " +
  "data default delegate delete do double else enum explicit extends extern false final finally fixed float for " +
  "foreach friend from fun func function goto guard if implements import in inline instanceof int interface " +
  "internal is lateinit let lock long mut mutable namespace native new nil null nullptr object operator out " +
  "override package private protected protocol public readonly record ref register return sealed self short " +
  "signed sizeof static string struct super switch synchronized template this throw throws trait true try " +
  "typedef typename typeof uint union unsigned using val var virtual void volatile when where while with yield";
const JS_WORDS =
  "abstract any as async await boolean break case catch class const constructor continue debugger declare " +
  "default delete do else enum export extends false finally for from function get if implements import in " +
  "instanceof interface keyof let namespace never new null number of private protected public readonly return " +
  "satisfies set static string super switch this throw true try type typeof undefined unknown var void while " +
  "with yield";
const HASH = { line: "#" };

/** @type {Record<string, Language>} */
const LANGUAGES = {
  c: { line: "//", blocks: C_BLOCKS, quotes: "\"'", names: "#[a-z]+\\b", keywords: words(C_WORDS) },
  css: { blocks: C_BLOCKS, quotes: "\"'", names: "--[\\w-]+|[.#@][A-Za-z][\\w-]*|[\\w-]+(?=\\s*:)" },
  diff: {},
  go: {
    line: "//",
    blocks: [...C_BLOCKS, ["`", "`", "string"]],
    quotes: "\"'",
    keywords: words(
      "any bool break byte case chan const continue default defer else error fallthrough false for func go goto " +
      "if import int int64 interface map nil package range return rune select string struct switch true type " +
      "uint var",
    ),
  },
  javascript: {
    line: "//",
    blocks: [...C_BLOCKS, ["`", "(?<!\\\\)`", "string"]],
    quotes: "\"'",
    keywords: words(JS_WORDS),
  },
  json: { line: "//", quotes: '"', names: '"(?:\\\\.|[^"\\\\])*"(?=\\s*:)', keywords: words("true false null") },
  lua: {
    line: "--(?!\\[\\[)",
    blocks: [["--\\[\\[", "\\]\\]", "comment"], ["\\[\\[", "\\]\\]", "string"]],
    quotes: "\"'",
    keywords: words(
      "and break do else elseif end false for function goto if in local nil not or repeat return then true " +
      "until while",
    ),
  },
  markup: { blocks: [["<!--", "-->", "comment"]], quotes: "\"'", names: "</?[A-Za-z][\\w:.-]*|[\\w:-]+(?==)" },
  python: {
    ...HASH,
    blocks: [['"""', '"""', "string"], ["'''", "'''", "string"]],
    quotes: "\"'",
    names: "@[\\w.]+",
    keywords: words(
      "and as assert async await break case class continue def del elif else except False finally for from " +
      "global if import in is lambda match None nonlocal not or pass raise return self True try type while with " +
      "yield",
    ),
  },
  ruby: {
    ...HASH,
    quotes: "\"'",
    names: "[@$]+\\w+|:\\w+",
    keywords: words(
      "alias and begin break case class def do else elsif end ensure false for if in module next nil not or " +
      "puts raise redo require rescue retry return self super then true unless until when while yield",
    ),
  },
  rust: {
    line: "//",
    blocks: C_BLOCKS,
    quotes: '"',
    names: "[a-z_]+!|#!?\\[[^\\]]*\\]|'\\w+\\b(?!')",
    keywords: words(
      "as async await bool break const continue crate dyn else enum extern f32 f64 false fn for i32 i64 if impl " +
      "in let loop match mod move mut pub ref return self Self static str struct super trait true type u32 u64 " +
      "u8 unsafe use usize where while",
    ),
  },
  shell: {
    line: "(?:(?<=\\s)|^)#",
    quotes: "\"'",
    names: "\\$\\{?\\w+\\}?|(?<=\\s)--?[A-Za-z][\\w-]*",
    keywords: words(
      "case cd do done echo elif else esac exit export fi for function if in local read return set shift sudo " +
      "then until while",
    ),
  },
  sql: {
    line: "--",
    blocks: C_BLOCKS,
    quotes: "'\"",
    ignoresCase: true,
    keywords: words(
      "add all alter and as asc begin between by case check column commit constraint create default delete desc " +
      "distinct drop else end exists foreign from full group having if in index inner insert into is join key " +
      "left like limit not null offset on or order outer primary references right rollback select set table " +
      "then union unique update values view when where with",
    ),
  },
  yaml: {
    ...HASH,
    quotes: "\"'",
    names: "[\\w.-]+(?=\\s*[:=](?:\\s|$))|^\\s*\\[+[^\\]]+\\]+",
    keywords: words("true false null"),
  },
};

/** @type {Record<string, string>} */
const ALIASES = {
  bash: "shell", console: "shell", dockerfile: "shell", fish: "shell", sh: "shell", zsh: "shell",
  "c++": "c", "c#": "c", cpp: "c", cs: "c", csharp: "c", cuda: "c", dart: "c", h: "c", hpp: "c", java: "c", kotlin: "c",
  kt: "c", php: "c", scala: "c", swift: "c", zig: "c",
  golang: "go",
  html: "markup", svg: "markup", vue: "markup", xml: "markup",
  ini: "yaml", toml: "yaml", yml: "yaml",
  js: "javascript", jsx: "javascript", mjs: "javascript", ts: "javascript", tsx: "javascript", typescript: "javascript",
  json5: "json", jsonc: "json", jsonl: "json",
  less: "css", scss: "css",
  patch: "diff",
  postgresql: "sql", mysql: "sql", sqlite: "sql",
  py: "python", python3: "python",
  rb: "ruby", rs: "rust",
};

const NUMBER = "(?<![\\w.])(?:0[xX][\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)[a-zA-Z%]{0,4}\\b";
const WORD = "[\\p{L}_$][\\p{L}\\p{N}_$]*";

export class Highlighter {
  #language;
  #pattern;
  /** The open block: the pattern of its end, and its kind. @type {{end: RegExp, kind: Kind} | null} */
  #open = null;
  #isDiff;

  /**
   * @param {Language} language
   * @param {boolean} isDiff
   */
  constructor(language, isDiff) {
    this.#language = language;
    this.#isDiff = isDiff;
    this.#pattern = compile(language);
  }

  /**
   * The tokens of a complete line. The next line starts in the state in which this one ends.
   *
   * @param {string} line
   * @returns {Token[]}
   */
  line(line) {
    if (this.#isDiff) return [[diffKind(line), line]];
    if (line.length > LONGEST_LINE) return [["", line]];
    /** @type {Token[]} */
    const tokens = [];
    let at = 0;
    while (at < line.length) {
      const from = at;
      at = this.#open ? this.#readBlock(line, at, tokens) : this.#readCode(line, at, tokens);
      if (at === from) break;
    }
    return tokens;
  }

  /**
   * The tokens of a line that may still grow.
   *
   * @param {string} line
   */
  draft(line) {
    const open = this.#open;
    const tokens = this.line(line);
    this.#open = open;
    return tokens;
  }

  /**
   * @param {string} line
   * @param {number} at
   * @param {Token[]} tokens
   */
  #readBlock(line, at, tokens) {
    const { end, kind } = /** @type {{end: RegExp, kind: Kind}} */ (this.#open);
    end.lastIndex = at;
    const found = end.exec(line);
    const to = found ? end.lastIndex : line.length;
    if (found) this.#open = null;
    const last = tokens.at(-1);
    if (last?.[0] === kind) last[1] += line.slice(at, to); // what opened it
    else tokens.push([kind, line.slice(at, to)]);
    return to;
  }

  /**
   * @param {string} line
   * @param {number} at
   * @param {Token[]} tokens
   */
  #readCode(line, at, tokens) {
    this.#pattern.lastIndex = at;
    for (let found; (found = this.#pattern.exec(line)); ) {
      const { groups = {}, index, 0: text } = found;
      const kind = this.#kindOf(groups, text);
      if (kind === "") continue;
      if (index > at) tokens.push(["", line.slice(at, index)]);
      tokens.push([kind, text]);
      at = this.#pattern.lastIndex;
      if (this.#open) return at;
    }
    if (at < line.length) tokens.push(["", line.slice(at)]);
    return line.length;
  }

  /**
   * @param {Record<string, string | undefined>} groups
   * @param {string} text
   * @returns {Kind}
   */
  #kindOf(groups, text) {
    const { blocks = [], keywords, ignoresCase } = this.#language;
    for (const [place, [, end, kind]] of blocks.entries()) {
      if (groups[`block${place}`] === undefined) continue;
      this.#open = { end: new RegExp(end, "g"), kind };
      return kind;
    }
    for (const kind of /** @type {const} */ (["comment", "name", "string", "number"])) {
      if (groups[kind] !== undefined) return kind;
    }
    return keywords?.has(ignoresCase ? text.toLowerCase() : text) ? "keyword" : "";
  }
}

/**
 * The highlighter of a language; null if it is not known.
 *
 * @param {string} info of a code fence
 */
export function highlighterOf(info) {
  const [word = ""] = info.toLowerCase().split(/[\s{,:]/);
  const name = Object.hasOwn(ALIASES, word) ? ALIASES[word] : word;
  return Object.hasOwn(LANGUAGES, name) ? new Highlighter(LANGUAGES[name], name === "diff") : null;
}

/**
 * One pattern for all that is not plain. No alternative can backtrack over more than one line of limited length.
 *
 * @param {Language} language
 */
function compile({ line, blocks = [], quotes = "", names }) {
  const parts = blocks.map(([start], place) => `(?<block${place}>${start})`);
  if (line) parts.push(`(?<comment>${line}.*)`);
  if (names) parts.push(`(?<name>${names})`);
  const strings = [...quotes].map((quote) => `${quote}(?:\\\\.|[^${quote}\\\\])*${quote}?`);
  if (strings.length) parts.push(`(?<string>${strings.join("|")})`);
  return new RegExp([...parts, `(?<number>${NUMBER})`, WORD].join("|"), "gu");
}

/**
 * @param {string} line
 * @returns {Kind}
 */
function diffKind(line) {
  if (/^(?:@@|diff |index |\+\+\+|---)/.test(line)) return "name";
  if (line.startsWith("+")) return "added";
  return line.startsWith("-") ? "removed" : "";
}
