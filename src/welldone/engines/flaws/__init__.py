"""Servers that are right but for one rule: for whoever tries a client, and to test the check with."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import cycle

from welldone.engines.flaws.examples import Shown
from welldone.engines.flaws.habits import HABITS, Deaf
from welldone.engines.ideal import Ideal
from welldone.engines.ideal.server import Answerer
from welldone.engines.scripted import Seen
from welldone.engines.scripts import Reply
from welldone.wire.faults import Hearing
from welldone.wire.faults.catalogue import BY_ID


def flawed(rule: str, ideal: Ideal) -> Answerer:
    """The ideal server with one flaw. Raises `LookupError` for a rule that no server of ours breaks."""
    if rule in HABITS:
        return partial(HABITS[rule], ideal)
    if rule == "live-cancel-on-disconnect":
        return Deaf(ideal).answer
    if BY_ID[rule].by is Hearing.REPLY:
        return Shown(rule, ideal).answer
    raise LookupError(rule)


def in_turn(answerers: Sequence[Answerer]) -> Answerer:
    """Several servers as one: each takes its turn. Methods have turns of their own, as clients send OPTIONS first."""
    turns = defaultdict[str, "cycle[Answerer]"](lambda: cycle(answerers))

    def answer(seen: Seen) -> Reply:
        return next(turns[seen.method])(seen)

    return answer
