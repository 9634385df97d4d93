"""Report formats of `welldone check`, by file suffix."""

from collections.abc import Callable, Mapping

from welldone.check.report import Report
from welldone.check.reports import html, machine, text

RENDERERS: Mapping[str, Callable[[Report], str]] = {
    ".json": machine.render_json,
    ".xml": machine.render_junit,
    ".md": text.render_markdown,
    ".html": html.render_html,
    ".sarif": machine.render_sarif,
    ".svg": machine.render_badge,
}
