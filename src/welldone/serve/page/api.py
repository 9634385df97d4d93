"""The paths of the page."""

import re
from typing import NamedTuple

from welldone.serve.app import RouteHandler, Route
from welldone.serve.page.front import ASSETS_PATH, AssetHandlers, AssetSource
from welldone.serve.page.inspect import InspectorApi
from welldone.serve.page.recent import RecentRequests
from welldone.serve.page.state import StateApi
from welldone.serve.page.tapes import CaptureStore

_API_PREFIX = "/page/api/"
_NESTED_PATH = re.compile(r"^(/page/(?:assets|api/[a-z]+)/).+")


class InspectorServices(NamedTuple):
    """What a server with a page has besides."""

    site: AssetSource
    recent: RecentRequests
    captures: CaptureStore


def inspector_routes(assets: AssetHandlers, state: StateApi, inspector: InspectorApi) -> dict[str, Route]:
    """All routes of the page. A path that ends with `*` has others below it."""

    def shown(action: RouteHandler, *, is_open: bool = False) -> Route:
        return Route("page", {"GET": action}, is_public=is_open)

    return {
        "/": shown(assets.index, is_open=True),
        f"{ASSETS_PATH}*": shown(assets.asset, is_open=True),
        f"{_API_PREFIX}state": shown(state.get_state),
        f"{_API_PREFIX}recordings/*": shown(state.get_recording),
        f"{_API_PREFIX}tapes/*": shown(inspector.get_capture),
        f"{_API_PREFIX}rules/*": shown(inspector.get_rule),
        f"{_API_PREFIX}lint": Route("page", {"POST": inspector.lint}, is_rate_limited=True),
    }


def wildcard_path(path: str) -> str:
    """The path under which a route stands, for one that has names below it."""
    return _NESTED_PATH.sub(r"\1*", path)
