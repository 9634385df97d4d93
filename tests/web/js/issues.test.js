// References to issues in rule pages.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

import { issuesOf, withIssueLinks } from "../../../src/welldone/web/static/js/issues.js";

const PAGE = "See a/b#12, c.d/e-f#3 and a/b#12 (`g/h#4`).\n\n```sse\nx/y#5\n```\nurl https://x.org/a/b#7 and #8";

test("references outside of code are issues, each once", () => {
  assert.deepEqual(issuesOf(PAGE), [
    { name: "a/b#12", url: "https://github.com/a/b/issues/12" },
    { name: "c.d/e-f#3", url: "https://github.com/c.d/e-f/issues/3" },
  ]);
});

test("only they become links", () => {
  const linked = withIssueLinks(PAGE);
  assert.ok(linked.startsWith("See [a/b#12](https://github.com/a/b/issues/12), [c.d/e-f#3]("));
  assert.ok(linked.endsWith("(`g/h#4`).\n\n```sse\nx/y#5\n```\nurl https://x.org/a/b#7 and #8"));
});

test("many rule pages have issues", () => {
  const folder = new URL("../../../docs/rules/", import.meta.url);
  const pages = readdirSync(folder).map((name) => readFileSync(new URL(name, folder), "utf8"));
  assert.ok(pages.filter((page) => issuesOf(page).length > 0).length > 20);
});
