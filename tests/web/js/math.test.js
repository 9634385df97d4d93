// Formulas: the MathML of the subset, and null for everything else.

import assert from "node:assert/strict";
import { test } from "node:test";

import { MAX_FORMULA, toTree } from "../../../src/welldone/web/static/js/markdown/tex.js";

/** Compact notation without the attributes: mi, mn and mo are their text, other elements are (name …). */
function short(tree) {
  if (typeof tree === "string") return tree;
  const inside = tree.children.map(short).join(" ");
  return /^m[ion]$/.test(tree.tag) ? inside : `(${tree.tag.replace(/^m/, "")}${inside && " "}${inside})`;
}

function formula(tex) {
  const tree = toTree(tex, true);
  return tree && tree.children[0].children[0];
}

/** All nodes of a tree. */
function nodes(tree) {
  return typeof tree === "string" ? [] : [tree, ...tree.children.flatMap(nodes)];
}

const CASES = [
  ["a + 12.5b = 3.", "(row a + 12.5 b = 3 .)"],
  ["1 2", "(row 1 2)"],
  ["-x", "(row − x)"],
  ["\\alpha\\Omega\\infty", "(row α Ω ∞)"],
  ["x^2", "(sup x 2)"],
  ["x^23", "(row (sup x 2) 3)"],
  ["x_i^{n+1}", "(subsup x i (row n + 1))"],
  ["f'' (x)", "(row (sup f ′′) ( x ))"],
  ["f'^2", "(sup f (row ′ 2))"],
  ["{}^2", "(sup (row) 2)"],
  ["\\frac{a}{b} \\frac12", "(row (frac a b) (frac 1 2))"],
  ["\\dfrac ab \\tfrac ab", "(row (style (frac a b)) (style (frac a b)))"],
  ["\\binom nk", "(row ( (frac n k) ))"],
  ["\\sqrt{x} \\sqrt[3]x", "(row (sqrt x) (root x 3))"],
  ["\\sum_{i=1}^n i", "(row (underover ∑ (row i = 1) n) i)"],
  ["\\int_0^1 f", "(row (subsup ∫ 0 1) f)"],
  ["\\int\\limits_0^1", "(underover ∫ 0 1)"],
  ["\\lim_{x \\to 0} \\sin x", "(row (under lim (row x → 0)) sin x)"],
  ["\\left( \\frac ab \\right]", "(row ( (frac a b) ])"],
  ["\\left. x \\right|_0", "(sub (row x |) 0)"],
  ["\\left\\{ a \\middle| b \\right\\}", "(row { a | b })"],
  ["\\bigl( x \\bigr)", "(row ( x ))"],
  ["\\text{if } x", "(row (text if\u00a0) x)"],
  ["\\text{<b>&amp;</b>}", "(text <b>&amp;</b>)"],
  ["\\mathrm{kg} \\mathbf{x} \\mathbb{R}^n \\mathcal{L}", "(row kg \u{1d431} (sup ℝ n) ℒ)"],
  ["\\boldsymbol\\beta", "\u{1d6c3}"],
  ["\\hat x \\vec{v} \\overline{ab}", "(row (over x ^) (over v →) (over (row a b) ‾))"],
  ["\\underbrace{a}_{b}", "(under (under a ⏟) b)"],
  ["a\\,b\\quad c~d", "(row a (space) b (space) c (space) d)"],
  ["a \\cdot b \\times c \\le d \\neq e \\Rightarrow f \\in g", "(row a ⋅ b × c ≤ d ≠ e ⇒ f ∈ g)"],
  ["\\not= \\not\\in", "(row ≠ ∉)"],
  ["|x| \\|y\\| \\{z\\}", "(row | x | ‖ y ‖ { z })"],
  ["\\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}",
    "(row ( (table (tr (td a) (td b)) (tr (td c) (td d))) ))"],
  ["\\begin{cases} 1 & x \\\\[2pt] 0 \\\\ \\end{cases}", "(row { (table (tr (td 1) (td x)) (tr (td 0))))"],
  ["\\begin{align*} a &= b \\end{align*}", "(table (tr (td a) (td (row = b))))"],
  ["\\begin{array}{c|c} a & b \\end{array}", "(table (tr (td a) (td b)))"],
  ["a \\\\ b", "(table (tr (td a)) (tr (td b)))"],
  ["\\operatorname*{argmin}_x \\boxed{42}", "(row (under arg\u00a0min x) (row 42))"],
  ["a \\equiv b \\pmod n \\tag{1}", "(row a ≡ b (row (space) ( mod n )) (row (space) (text (1))))"],
  ["é ≤ 中 ∑", "(row é ≤ 中 ∑)"],
  ["\\alpha*b", "(row α ∗ b)"],
];

for (const [tex, expected] of CASES) {
  test(`${tex} is MathML`, () => assert.equal(short(formula(tex)), expected));
}

const SOURCE = [
  "", "  ", "\\", "{", "}", "a}", "{a", "x^", "x_", "x^2^3", "x_1_2", "\\frac{a}", "\\frac", "\\sqrt[3", "\\sqrt[3]",
  "\\left( a", "a \\right)", "\\left a \\right b", "\\begin{matrix} a", "\\end{matrix}",
  "\\begin{matrix} a \\end{cases}",
  "\\begin{tikzpicture} a \\end{tikzpicture}", "\\text{a", "\\text a", "\\text{\\href{x}{y}}",
  "\\nosuchcommand", "\\constructor", "\\__proto__", "\\href{javascript:alert(1)}{x}", "\\url{x}", "\\def\\a{b}",
  "\\input{x}", "\\\\[a] b",
  "a # b", "a % b", "$", '"', "a\u202eb", "a\u200bb", "\\hat", "x^'", "`a`", "\\not x",
];

for (const tex of SOURCE) {
  test(`${JSON.stringify(tex)} stays source`, () => assert.equal(toTree(tex, false), null));
}

test("the length is limited", () => {
  assert.ok(toTree("a".repeat(MAX_FORMULA), false));
  assert.equal(toTree("a".repeat(MAX_FORMULA + 1), false), null);
});

const NESTED = [
  ["{", "}"], ["\\sqrt{", "}"], ["\\left(", "\\right)"], ["\\hat ", ""], ["x^{", "}"], ["\\sqrt[", "]a"],
  ["\\displaystyle ", ""], ["\\begin{matrix}", "\\end{matrix}"],
];

for (const [open, close] of NESTED) {
  test(`the depth of ${open} is limited`, () => {
    const nested = (depth) => `${open.repeat(depth)}a${close.repeat(depth)}`;
    assert.ok(toTree(nested(10), false));
    assert.equal(toTree(nested(100), false), null);
  });
}

test("the source is an annotation", () => {
  const annotation = toTree(" \\frac12 ", false).children[0].children[1];
  assert.deepEqual(annotation, {
    tag: "annotation", attributes: { encoding: "application/x-tex" }, children: ["\\frac12"],
  });
});

test("hidden characters of texts are visible", () => {
  assert.equal(short(formula("\\text{a\u202eb}")), "(text a⟨U+202E⟩b)");
});

test("signs without a left operand are unary", () => {
  const forms = nodes(formula("-a = -b - c(-d)")).filter(({ children }) => children[0] === "−");
  assert.deepEqual(forms.map(({ attributes }) => attributes.form), ["prefix", "prefix", undefined, "prefix"]);
});

test("no attribute has a text of the formula", () => {
  const words = ["\\text{", "}", "}", "{", "\\href", "onclick=evil", "evil", "\\mathbf", "^", "_", "&", "\\\\"];
  words.push("\\operatorname{", "\\tag{", "a", "<b>");
  let state = 1;
  let seen = 0;
  for (let round = 0; round < 3_000; round += 1) {
    let tex = "";
    for (let n = 0; n < 6; n += 1) {
      state = (state * 1_103_515_245 + 12_345) % 2_147_483_648;
      tex += `${words[Math.floor((state / 2_147_483_648) * words.length)]} `;
    }
    const tree = toTree(tex, true);
    if (!tree) continue;
    seen += 1;
    for (const { tag, attributes } of nodes(tree)) {
      assert.match(tag, /^(?:m[a-z]+|semantics|annotation)$/);
      assert.doesNotMatch(JSON.stringify(attributes), /evil|href|"on/);
    }
  }
  assert.ok(seen > 50, `${seen} formulas`);
});
