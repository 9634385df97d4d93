"""Which form of report a file gets: its ending says it."""

from collections.abc import Callable, Mapping

from welldone.check.report import Report
from welldone.check.reports import badge, data, html, junit, markdown, sarif

FORMS: Mapping[str, Callable[[Report], str]] = {
    ".json": data.draw,
    ".xml": junit.draw,
    ".md": markdown.draw,
    ".html": html.draw,
    ".sarif": sarif.draw,
    ".svg": badge.draw,
}
