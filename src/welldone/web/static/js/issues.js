// References to issues of other projects, such as `owner/project#12`, in the pages of rules.

const REFERENCE = /(?<![\w./#-])([A-Za-z0-9][\w.-]*\/[A-Za-z0-9][\w.-]*)#(\d+)\b/g;
const MAX_LISTED = 6; // fits into two lines

/**
 * @param {string} page Markdown
 * @returns {{name: string, url: string}[]} each once, in their order
 */
export function issuesOf(page) {
  const found = new Map([...outsideCode(page).matchAll(REFERENCE)].map((match) => [match[0], urlOf(match)]));
  return [...found].slice(0, MAX_LISTED).map(([name, url]) => ({ name, url }));
}

/**
 * The page with a link for each reference.
 *
 * @param {string} page Markdown
 */
export function withIssueLinks(page) {
  // Odd parts are code.
  return page.split(CODE).map((part, n) => (n % 2 ? part : linked(part))).join("");
}

const CODE = /(^```[^]*?^```$|`[^`\n]*`)/m;

/** @param {string} text */
function linked(text) {
  return text.replace(REFERENCE, (name, project, number) => `[${name}](${urlOf([name, project, number])})`);
}

/** @param {string} page */
function outsideCode(page) {
  return page.split(CODE).filter((_, n) => n % 2 === 0).join(" ");
}

/** @param {ArrayLike<string>} match */
function urlOf(match) {
  return `https://github.com/${match[1]}/issues/${match[2]}`;
}
