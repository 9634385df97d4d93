"""Which form of report a file gets: its ending says it."""

from collections.abc import Callable, Mapping

from welldone.check.report import Report
from welldone.check.reports import badge, data, html, junit, markdown, sarif

RENDERERS: Mapping[str, Callable[[Report], str]] = {
    ".json": data.render_json,
    ".xml": junit.render_junit,
    ".md": markdown.render_markdown,
    ".html": html.render_html,
    ".sarif": sarif.render_sarif,
    ".svg": badge.render_badge,
}
