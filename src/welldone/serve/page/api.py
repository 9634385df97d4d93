"""The paths of the page."""

import re
from typing import NamedTuple

from welldone.serve.app import Action, Route
from welldone.serve.page.front import ASSETS, Front, Site
from welldone.serve.page.inspect import Inspect
from welldone.serve.page.recent import Recent
from welldone.serve.page.state import StateApi
from welldone.serve.page.tapes import Tapes

_API = "/page/api/"
_BELOW = re.compile(r"^(/page/(?:assets|api/[a-z]+)/).+")


class PageParts(NamedTuple):
    """What a server with a page has besides."""

    site: Site
    recent: Recent
    tapes: Tapes


def page_paths(front: Front, state: StateApi, inspect: Inspect) -> dict[str, Route]:
    """All routes of the page. A path that ends with `*` has others below it."""

    def shown(action: Action, *, is_open: bool = False) -> Route:
        return Route("page", {"GET": action}, is_open=is_open)

    return {
        "/": shown(front.index, is_open=True),
        f"{ASSETS}*": shown(front.asset, is_open=True),
        f"{_API}state": shown(state.state),
        f"{_API}recordings/*": shown(state.recording),
        f"{_API}tapes/*": shown(inspect.tape),
        f"{_API}rules/*": shown(inspect.rule),
        f"{_API}lint": Route("page", {"POST": inspect.lint}, is_limited=True),
    }


def below_page(path: str) -> str:
    """The path under which a route stands, for one that has names below it."""
    return _BELOW.sub(r"\1*", path)
