// Symbols and alphabets of TeX by the name of their command.

/**
 * @param {string} text names and their characters in turn
 * @returns {Map<string, string>}
 */
function table(text) {
  const words = text.trim().split(/\s+/);
  return new Map(words.flatMap((name, n) => (n % 2 === 0 ? [[name, words[n + 1]]] : [])));
}

/** Set in italics, as variables. */
export const LETTERS = table(`alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ
  iota ι kappa κ lambda λ mu μ nu ν xi ξ omicron ο pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ
  phi ϕ varphi φ chi χ psi ψ omega ω ell ℓ imath ı jmath ȷ`);

/** Set upright. */
export const UPRIGHT = table(`Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω
  infty ∞ partial ∂ nabla ∇ hbar ℏ Re ℜ Im ℑ aleph ℵ wp ℘ emptyset ∅ varnothing ∅ angle ∠ triangle △ degree °
  top ⊤ bot ⊥ square □ Box □ blacksquare ■ checkmark ✓ dagger † ddagger ‡ ldots … dots … dotsc … cdots ⋯ dotsb ⋯
  vdots ⋮ ddots ⋱ prime ′ % % $ $ # # & & _ _`);

export const OPERATORS = table(`cdot ⋅ times × div ÷ pm ± mp ∓ ast ∗ star ⋆ circ ∘ bullet ∙ oplus ⊕ ominus ⊖ otimes ⊗
  odot ⊙ wedge ∧ land ∧ vee ∨ lor ∨ cap ∩ cup ∪ setminus ∖ backslash ∖ neg ¬ lnot ¬ forall ∀ exists ∃ nexists ∄
  le ≤ leq ≤ leqslant ⩽ ge ≥ geq ≥ geqslant ⩾ lt < gt > ne ≠ neq ≠ ll ≪ gg ≫ approx ≈ sim ∼ simeq ≃ cong ≅ equiv ≡
  propto ∝ prec ≺ succ ≻ preceq ⪯ succeq ⪰ lesssim ≲ gtrsim ≳ doteq ≐ triangleq ≜ coloneqq ≔ asymp ≍ models ⊨
  vdash ⊢ dashv ⊣ mid ∣ nmid ∤ parallel ∥ perp ⊥ in ∈ notin ∉ ni ∋ subset ⊂ subseteq ⊆ subsetneq ⊊ supset ⊃
  supseteq ⊇ therefore ∴ because ∵ colon : to → rightarrow → longrightarrow ⟶ leftarrow ← gets ← longleftarrow ⟵
  leftrightarrow ↔ Rightarrow ⇒ Longrightarrow ⟹ implies ⟹ Leftarrow ⇐ impliedby ⟸ Leftrightarrow ⇔ iff ⟺
  Longleftrightarrow ⟺ mapsto ↦ longmapsto ⟼ uparrow ↑ downarrow ↓ updownarrow ↕ Uparrow ⇑ Downarrow ⇓ nearrow ↗
  searrow ↘ hookrightarrow ↪ hookleftarrow ↩ rightharpoonup ⇀ rightleftharpoons ⇌ leadsto ⇝ bmod mod`);

/** Large operators, by where their limits are. */
export const SUMS = table(`sum ∑ prod ∏ coprod ∐ bigcup ⋃ bigcap ⋂ bigoplus ⨁ bigotimes ⨂ bigvee ⋁ bigwedge ⋀`);
export const INTEGRALS = table("int ∫ iint ∬ iiint ∭ oint ∮");

/** Names of functions; limits are below those in `LIMITS`. */
export const FUNCTIONS = new Set(
  `sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth exp log ln lg dim ker deg arg hom`.split(/\s+/),
);
export const LIMITS = new Set("lim max min sup inf limsup liminf argmax argmin det gcd Pr".split(" "));

export const FENCES = table(`( ( ) ) [ [ ] ] | | / / { { } } lbrace { rbrace } lbrack [ rbrack ] langle ⟨ rangle ⟩
  lceil ⌈ rceil ⌉ lfloor ⌊ rfloor ⌋ vert | lvert | rvert | Vert ‖ lVert ‖ rVert ‖ < ⟨ > ⟩ uparrow ↑ downarrow ↓
  || ‖`);

/** Accents, and whether they stretch over their base. */
export const OVER = table(`hat ^ widehat ^ bar ¯ overline ‾ vec → overrightarrow → overleftarrow ← dot ˙ ddot ¨ tilde ~
  widetilde ~ check ˇ breve ˘ acute ´ grave \` mathring ˚ overbrace ⏞`);
export const UNDER = table("underline _ underbrace ⏟");
export const STRETCHED = /^(?:wide|over|under)/;

/** Widths in em, from TeX's 18 mu. */
export const SPACES = new Map([
  [",", "0.167em"], ["thinspace", "0.167em"], [":", "0.222em"], [">", "0.222em"], [";", "0.278em"], ["!", "-0.167em"],
  [" ", "0.25em"], ["\n", "0.25em"], ["quad", "1em"], ["qquad", "2em"],
]);

/** Commands without effect here. */
export const IGNORED = new Set("nonumber notag hline limits nolimits displaylimits allowbreak relax".split(" "));

/** First code points of A, a and 0 in the alphabets of Unicode (Mathematical Alphanumeric Symbols). */
const ALPHABETS = new Map([
  ["mathbf", [0x1d400, 0x1d41a, 0x1d7ce]],
  ["mathbb", [0x1d538, 0x1d552, 0x1d7d8]],
  ["mathcal", [0x1d49c, 0x1d4b6, 0]],
  ["mathfrak", [0x1d504, 0x1d51e, 0]],
  ["mathsf", [0x1d5a0, 0x1d5ba, 0x1d7e2]],
  ["mathtt", [0x1d670, 0x1d68a, 0x1d7f6]],
  ["mathrm", [0, 0, 0]],
  ["mathit", [0, 0, 0]],
]);
const ALIASES = table("boldsymbol mathbf bm mathbf textbf mathbf mathscr mathcal");
/** Letters that Unicode had before those alphabets. */
const EARLIER = new Map([
  ["mathbb", table("C ℂ H ℍ N ℕ P ℙ Q ℚ R ℝ Z ℤ")],
  ["mathcal", table("B ℬ E ℰ F ℱ H ℋ I ℐ L ℒ M ℳ R ℛ e ℯ g ℊ o ℴ")],
  ["mathfrak", table("C ℭ H ℌ I ℑ R ℜ Z ℨ")],
]);

/**
 * The alphabet that a command selects; undefined for other commands.
 *
 * @param {string} command
 */
export function alphabetOf(command) {
  const name = ALIASES.get(command) ?? command;
  return ALPHABETS.has(name) ? name : undefined;
}

/**
 * A text in an alphabet; characters that it has not stay.
 *
 * @param {string} text
 * @param {string} alphabet
 */
export function inAlphabet(text, alphabet) {
  const [capital, small, digit] = ALPHABETS.get(alphabet) ?? [0, 0, 0];
  return text.replace(/[A-Za-z0-9Α-Ωα-ω]/g, (sign) => {
    const code = sign.charCodeAt(0);
    const earlier = EARLIER.get(alphabet)?.get(sign);
    if (earlier) return earlier;
    if (code >= 0x391) {
      if (alphabet !== "mathbf") return sign;
      return String.fromCodePoint(code >= 0x3b1 ? code - 0x3b1 + 0x1d6c2 : code - 0x391 + 0x1d6a8);
    }
    const [first, start] = code >= 97 ? [97, small] : code >= 65 ? [65, capital] : [48, digit];
    return start ? String.fromCodePoint(start + code - first) : sign;
  });
}
