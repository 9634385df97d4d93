"""The paths of the page."""

import re
from collections.abc import Mapping

import msgspec

from welldone.serve.app import Action, Route
from welldone.serve.page.front import ASSETS, Front

_API = "/page/api/"
_BELOW = re.compile(r"^(/page/(?:assets|api/[a-z]+)/).+")


def below_page(path: str) -> str:
    """The path under which a route stands, for one that has names below it."""
    return _BELOW.sub(r"\1*", path)


class PageApi(msgspec.Struct, frozen=True):
    """What the page asks for, each by whoever knows it."""

    front: Front
    shown: Mapping[str, Action]
    """What is only looked at, by its name below the page's own path; a name that ends with `/*` has others below it."""
    asked: Mapping[str, Action]
    """What is done with something that the page sends."""

    def paths(self) -> dict[str, Route]:
        """Their routes."""
        return {
            "/": Route("page", {"GET": self.front.index}, is_open=True),
            f"{ASSETS}*": Route("page", {"GET": self.front.asset}, is_open=True),
            **{_API + name: Route("page", {"GET": action}) for name, action in self.shown.items()},
            **{_API + name: Route("page", {"POST": action}, is_limited=True) for name, action in self.asked.items()},
        }
