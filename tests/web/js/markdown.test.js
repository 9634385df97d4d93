// Markdown: parsing, no lost text, linear time.

import assert from "node:assert/strict";
import { test } from "node:test";

import { parse } from "../../../src/welldone/web/static/js/markdown/parse.js";

/**
 * Compact notation of the tree: (p …), (em …), plain text.
 */
function short(blocks) {
  return blocks.map(shortBlock).join(" ");
}

function shortBlock(block) {
  switch (block.type) {
    case "paragraph":
      return `(p ${shortInlines(block.inlines)})`;
    case "heading":
      return `(h${block.level} ${shortInlines(block.inlines)})`;
    case "code":
      return `(pre ${block.info}:${block.text})`;
    case "rule":
      return "(hr)";
    case "quote":
      return `(quote ${short(block.blocks)})`;
    case "list": {
      const items = block.items.map(({ isDone, blocks }) => {
        const task = isDone === null ? "" : isDone ? "[x] " : "[ ] ";
        return `(li ${task}${short(blocks)})`;
      });
      return `(${block.start === null ? "ul" : `ol${block.start}`}${block.isTight ? "" : " loose"} ${items.join(" ")})`;
    }
    case "table": {
      const rows = [block.head, ...block.rows].map((row) => row.map(shortInlines).join(" | "));
      return `(table ${block.aligns.map((align) => align ?? "-").join(",")} ${rows.join(" / ")})`;
    }
  }
}

const NAMES = { emphasis: "em", strong: "b", strike: "del" };

function shortInlines(inlines) {
  return inlines
    .map((inline) => {
      if (inline.type === "text") return inline.text;
      if (inline.type === "break") return "(br)";
      if (inline.type === "code" || inline.type === "math") return `(${inline.type} ${inline.text})`;
      const inside = shortInlines(inline.inlines);
      if (inline.type === "link") return `(a ${inline.href}${inline.title && ` "${inline.title}"`} ${inside})`;
      return `(${NAMES[inline.type]} ${inside})`;
    })
    .join("");
}

const CASES = {
  "a paragraph goes on over lines": ["a\nb\n\nc", "(p a\nb) (p c)"],
  "headings have signs before them, or a line below": ["# A #\n## B\nC\n===\n#no", "(h1 A) (h2 B) (h1 C) (p #no)"],
  "a line of signs is a rule": ["a\n\n---\n* * *\n___", "(p a) (hr) (hr) (hr)"],
  "stars are emphasis": ["*a* **b** ***c*** ~~d~~", "(p (em a) (b b) (em (b c)) (del d))"],
  "emphasis nests": ["**a *b* c**", "(p (b a (em b) c))"],
  "the rule of three holds": ["*a**b*", "(p (em a**b))"],
  "underscores within words are text": ["a_b_c _d_ __e__", "(p a_b_c (em d) (b e))"],
  "signs that do not match are text": ["2 * 3 * 4 **a", "(p 2 * 3 * 4 **a)"],
  "one tilde is text": ["~5 ~6~", "(p ~5 ~6~)"],
  "code within a line keeps its signs": ["`a*b*` ``c`d`` `e", "(p (code a*b*) (code c`d) `e)"],
  "a fence holds code as it is": ["```js\n*a*\n\n  <b>\n```\nx", "(pre js:*a*\n\n  <b>) (p x)"],
  "tabs in code stay": ["```make\na:\n\tb\n```", "(pre make:a:\n\tb)"],
  "a fence in an item keeps the tabs of its code": ["- a\n  ```\n  \tb\n  ```", "(ul (li (p a) (pre :\tb)))"],
  "a fence that is not closed runs to the end": ["~~~\na\n```\nb", "(pre :a\n```\nb)"],
  "four spaces are code": ["a\n\n    b\n\n      c\n\nd", "(p a) (pre :b\n\n  c) (p d)"],
  "a list is tight": ["- a\n- b", "(ul (li (p a)) (li (p b)))"],
  "blank lines make it loose": ["- a\n\n- b", "(ul loose (li (p a)) (li (p b)))"],
  "lists nest": ["- a\n  - b\n    1. c\n- d", "(ul (li (p a) (ul (li (p b) (ol1 (li (p c)))))) (li (p d)))"],
  "an ordered list begins where it says": ["7. a\n8. b", "(ol7 (li (p a)) (li (p b)))"],
  "a number in a text begins no list": ["in\n1985. x", "(p in\n1985. x)"],
  "other signs begin another list": ["- a\n* b", "(ul (li (p a))) (ul (li (p b)))"],
  "tasks are done or not": ["- [x] a\n- [ ] b\n- [y] c", "(ul (li [x] (p a)) (li [ ] (p b)) (li (p [y] c)))"],
  "code belongs to its item": ["1. a\n   ```\n   b\n   ```\n2. c", "(ol1 (li (p a) (pre :b)) (li (p c)))"],
  "an item goes on without its indent": ["- a\nb\n\nc", "(ul (li (p a\nb))) (p c)"],
  "quotes hold blocks": ["> # a\n> b\nc\n> > d", "(quote (h1 a) (p b\nc) (quote (p d)))"],
  "tables have columns": [
    "| a | b | c |\n|:--|:-:|--:|\n| 1 | *2* | 3\\|4 |\n| 5 |\n\nx",
    "(table left,center,right a | b | c / 1 | (em 2) | 3|4 / 5) (p x)",
  ],
  "cells beyond the last column are kept": ["a | b\n--|--\n1 | 2 | 3", "(table -,- a | b / 1 | 2  |  3)"],
  "a line of pipes alone is text": ["| a | b |\nc", "(p | a | b |\nc)"],
  "links lead somewhere": ['[a *b*](https://x.y/z "t")', '(p (a https://x.y/z "t" a (em b)))'],
  "brackets in an address count": ["[a](https://x.y/(z))", "(p (a https://x.y/(z) a))"],
  "addresses link by themselves": [
    "see https://x.y/a_b_c. <https://q.r> <me@x.y>",
    "(p see (a https://x.y/a_b_c https://x.y/a_b_c). (a https://q.r/ https://q.r) (a mailto:me@x.y me@x.y))",
  ],
  "a link holds no link": ["[a https://b.c d](https://x.y)", "(p (a https://x.y/ a https://b.c d))"],
  "pictures are links": ["![a](https://x.y/i.png)", "(p (a https://x.y/i.png a))"],
  "a picture in a link is its text": ["[![a](https://x.y/i.png)](https://q.r)", "(p (a https://q.r/ a))"],
  "a script is no link": ["[a](javascript:alert(1))", "(p [a](javascript:alert(1)))"],
  "data is no link": ["[a](data:text/html,x)", "(p [a](data:text/html,x))"],
  "a file is no link": ["[a](file:///etc/passwd) [b](/c)", "(p [a](file:///etc/passwd) [b](/c))"],
  "an address with a name in it is no link": ["[a](https://good.com@evil.com)", "(p [a](https://good.com@evil.com))"],
  "HTML is text": ["<script>alert(1)</script> <b>x</b>", "(p <script>alert(1)</script> <b>x</b>)"],
  "a line breaks where it says": ["a  \nb\\\nc", "(p a(br)b(br)c)"],
  "signs can be escaped": ["\\*a\\* \\\\ \\a", "(p *a* \\ \\a)"],
  "entities are characters": ["&amp; &#65; &#x42; &no; &#0; &constructor;", "(p & A B &no; \ufffd &constructor;)"],
  "formulas stay as they are": ["\\(a_b_c\\) $$x*y*z$$", "(p (math \\(a_b_c\\)) (math $$x*y*z$$))"],
  "an open formula is its source": ["a \\(b_1 and \\[q and $$r", "(p a \\(b_1 and \\[q and $$r)"],
  "one dollar is a formula within a line": ["($x_1$ and $\\$y$)", "(p ((math $x_1$) and (math $\\$y$)))"],
  "prices are text": ["$5 and $10, $5-$10, $5 or 10$, US$5 x$", "(p $5 and $10, $5-$10, $5 or 10$, US$5 x$)"],
  "variables are text": ["$A:$B ${a}${b} $a\nb$ \\$a$", "(p $A:$B ${a}${b} $a\nb$ $a$)"],
  "code is not in a formula": ["`$a$` $a `b$` \\(a `\\)`", "(p (code $a$) $a (code b$) (a (code \\)))"],
  "a formula in a code block is code": ["```\n$$a$$\n```\n\n    \\(a\\)", "(pre :$$a$$) (pre :\\(a\\))"],
  "a formula has lines of its own": ["a\n$$\nb\n+ c\n=\n$$\nd", "(p a\n(math $$\nb\n+ c\n=\n$$)d)"],
  "a formula without an end is its source": ["a\n\\[\n*b*\n- c\n\n*d*", "(p a(math \\[\n*b*\n- c)) (p (em d))"],
  "code ends an open formula": ["$$\n```\na\n```", "(p (math $$)) (pre :a)"],
  "an escaped bracket opens no formula": ["\\[1] \\(a)\n- b", "(p [1] (a)) (ul (li (p b)))"],
  "ends of lines of other systems are the same": ["a\r\nb\r\rc", "(p a\nb) (p c)"],
};

for (const [name, [text, expected]] of Object.entries(CASES)) {
  test(name, () => assert.equal(short(parse(text)), expected));
}

function depthOf(value) {
  if (Array.isArray(value)) return Math.max(0, ...value.map(depthOf));
  if (value === null || typeof value !== "object") return 0;
  return 1 + Math.max(0, ...Object.values(value).map(depthOf));
}

for (const sign of ["> ", "- ", "1. ", "*a **b ", "[", "~~a *b "]) {
  test(`nesting of ${JSON.stringify(sign)} is limited`, () => {
    const text = sign.repeat(5_000) + "x" + "** b* ".repeat(5_000);
    assert.ok(depthOf(parse(text)) < 80);
  });
}

const LONG = 200_000; // enough that squared time would show, little enough for each day
const HARD = [
  "*", "_", "~", "`", "[", "]", "![", "[a](", "[a](<b", '[a](b "', "[a](http://b ", "(", "> ", "- ", "-", "=", "#",
  "|", "|-", "1. ", "\n", " ", "\t", "\n ", "\n\n- a", "- a\n", "> a\n", "a\n", "a  \n", "\\", "\\[", "\\(", "$$",
  "$", "$a", "$a ", "$a\\$", "\\(`", "$$`", "$$\n", "$$\n+ a\n", "\\[\n", "\\[\na\n\\]\n",
  "&", "&a", "<", "<http://", "<a@", "http://", "http://[", "https://a.b/(", "*a_ ", "*a **a ", "a*b_c", "**a*",
  "`a``", "```\n", "~~~\n- ", "|a|b|\n|-|-|\n", "[![a](", "a|",
];

for (const part of HARD) {
  test(`a long run of ${JSON.stringify(part)} is parsed in time`, () => {
    const text = part.repeat(Math.ceil(LONG / part.length));
    assert.ok(Array.isArray(parse(text)));
  });
}

test("backtick runs of every length are parsed in time", () => {
  const text = Array.from({ length: 1_400 }, (_, n) => `${"`".repeat(n + 1)}a`).join(" ");
  assert.ok(parse(text).length > 0);
});

/** A small generator, so that what fails can be run again. */
function makeRandom(seed) {
  let state = seed;
  return () => {
    state = (state * 1_103_515_245 + 12_345) % 2_147_483_648;
    return state / 2_147_483_648;
  };
}

const WORDS = ["1. ", "- ", "```", "http://", "](", "\n\n", "    ", "> ", "| ", "|-", "![", "$$"];
const ALPHABET = [..."*_~`[]()!<>#|-+=:\\&$ \n\t\n  ", ...WORDS];

/** All of the text that a tree holds, wherever it stands. */
function textOf(value, out = []) {
  if (typeof value === "string") out.push(value);
  else if (value && typeof value === "object") for (const inner of Object.values(value)) textOf(inner, out);
  return out;
}

for (let seed = 1; seed <= 8; seed += 1) {
  test(`no word of a random text is lost (${seed})`, () => {
    const random = makeRandom(seed);
    let text = "";
    let words = 0;
    // Long texts in some rounds, short ones in others: signs meet in other ways.
    const size = seed <= 2 ? LONG : 2_000 * seed;
    while (text.length < size) {
      text += ALPHABET[Math.floor(random() * ALPHABET.length)];
      if (random() < 0.2) text += `Q${(words += 1)}Z`;
    }
    const found = new Set(textOf(parse(text)).join("\0").match(/Q\d+Z/gi)?.map((word) => word.toUpperCase()));
    for (let word = 1; word <= words; word += 1) assert.ok(found.has(`Q${word}Z`), `Q${word}Z is lost`);
  });
}
