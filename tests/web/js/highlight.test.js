// Syntax highlighting: kinds of tokens, state between lines, and no lost characters.

import assert from "node:assert/strict";
import { test } from "node:test";

import { highlighterOf } from "../../../src/welldone/web/static/js/markdown/highlight.js";

/** Tokens of a text that are not plain, as "kind:text". */
function marked(language, text) {
  const highlighter = highlighterOf(language);
  return text.split("\n").flatMap((line) => highlighter.line(line))
    .filter(([kind]) => kind).map(([kind, part]) => `${kind}:${part}`);
}

const CASES = [
  ["python", "def f(x): # why", ["keyword:def", "comment:# why"]],
  ["py", 'x = """one\ntwo""" + "a\\"b" + 1.5e3', ['string:"""one', 'string:two"""', 'string:"a\\"b"', "number:1.5e3"]],
  ["python", "@cache\nprint('#')", ["name:@cache", "string:'#'"]],
  ["ts", "const a = `x\n${b}` // c", ["keyword:const", "string:`x", "string:${b}`", "comment:// c"]],
  ["js", "/* a\nb */ if (1) {}", ["comment:/* a", "comment:b */", "keyword:if", "number:1"]],
  ["json", '{"a": "b", "n": [1, true]}', ['name:"a"', 'string:"b"', 'name:"n"', "number:1", "keyword:true"]],
  ["bash", 'echo "$A" --all # x', ["keyword:echo", 'string:"$A"', "name:--all", "comment:# x"]],
  ["html", '<a href="x">y</a><!-- z', ["name:<a", "name:href", 'string:"x"', "name:</a", "comment:<!-- z"]],
  ["SQL", "SELECT 1 FROM t -- all", ["keyword:SELECT", "number:1", "keyword:FROM", "comment:-- all"]],
  ["rust", "fn f<'a>(x: &'a str) { println!(\"hi\") }",
    ["keyword:fn", "name:'a", "name:'a", "keyword:str", "name:println!", 'string:"hi"']],
  ["yaml", "a: true # b", ["name:a", "keyword:true", "comment:# b"]],
  ["diff", "@@ 1\n+a\n-b\n c", ["name:@@ 1", "added:+a", "removed:-b"]],
];

for (const [language, text, expected] of CASES) {
  test(`${language}: ${JSON.stringify(text)}`, () => assert.deepEqual(marked(language, text), expected));
}

test("no language loses or changes a character", () => {
  const odd = "a\"b'c`d/*e//f#g<!--h$i@j 1.2.3 0x1G \\ \u{1f600}\u00e9 -- [[ ]] --[[";
  for (const language of "python js json c css go lua html ruby rust sh sql yaml diff".split(" ")) {
    const highlighter = highlighterOf(language);
    for (const line of [odd, odd, "", "*/ \"\"\" ` --> ]]", odd]) {
      assert.equal(highlighter.line(line).map(([, text]) => text).join(""), line, language);
    }
  }
});

test("a draft does not change the state", () => {
  const highlighter = highlighterOf("js");
  assert.deepEqual(highlighter.draft("/* open"), [["comment", "/* open"]]);
  assert.deepEqual(highlighter.line("if"), [["keyword", "if"]]);
});

test("unknown languages are not highlighted", () => {
  for (const info of ["", "klingon", "constructor", "__proto__"]) assert.equal(highlighterOf(info), null);
});

test("long lines take linear time and are plain", () => {
  const highlighter = highlighterOf("js");
  const began = performance.now();
  for (const part of ["\\\"", "aa", "00", "''"]) highlighter.line(part.repeat(1_000));
  assert.ok(performance.now() - began < 500);
  assert.deepEqual(highlighter.line("if ".repeat(1_000)), [["", "if ".repeat(1_000)]]);
});
