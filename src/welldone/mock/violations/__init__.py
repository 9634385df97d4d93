"""Servers that violate exactly one rule: to test clients, and to test `welldone check`."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle

from welldone.core.catalog import RULES, Detection
from welldone.mock.reference.server import MockHandler, ReferenceServer
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest
from welldone.mock.violations.behaviors import BEHAVIORS, DisconnectIgnoringServer
from welldone.mock.violations.edits import MockExchange
from welldone.mock.violations.page_examples import PageExampleServer


def violating_handler(rule: str, reference: ReferenceServer) -> MockHandler:
    """Return a handler that violates one rule. Raises `LookupError` if none of ours violates it."""
    if rule in BEHAVIORS:
        behavior = BEHAVIORS[rule]
        return lambda http_request: behavior(MockExchange(reference, http_request))
    if rule == "live-cancel-on-disconnect":
        return DisconnectIgnoringServer(reference).answer
    if RULES[rule].detection is Detection.REPLY:
        return PageExampleServer(rule, reference).answer
    raise LookupError(rule)


def round_robin(handlers: Sequence[MockHandler]) -> MockHandler:
    """Return a handler that alternates between several, separately per method, since browsers send OPTIONS first."""
    cycles = defaultdict[str, "cycle[MockHandler]"](lambda: cycle(handlers))

    def answer(http_request: MockHttpRequest) -> MockReply:
        return next(cycles[http_request.method])(http_request)

    return answer
