"""Flaws that take more than one reply to hear: what a server does otherwise than it should, each in a few lines."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import msgspec

from welldone.engines.flaws.changes import asked_as, edited, first_choice, request_of, said_as, text_of
from welldone.engines.ideal import Ideal
from welldone.engines.ideal.requests import Chat
from welldone.engines.ideal.server import GAUGE, Answerer
from welldone.engines.scripted import Seen
from welldone.engines.scripts import Piece, Reply, json_reply
from welldone.rules.choices import as_list, as_object
from welldone.wire.dialects.stream import error_object
from welldone.wire.events import Failure, Json

Habit: TypeAlias = Callable[[Ideal, Seen], Reply]

_MADE_S = 0.5
"""How long a text takes that comes all at once: so long that it shows."""
_READ_S = 0.0001
"""How long a character of a prompt takes to read, as on a small machine."""
_SILENCE_S = 20.0
"""Longer than most who wait for a sign of life do."""
_PACE_S = 0.01
"""Before each piece of an answer that somebody may leave."""
_DEAF_S = 30.0
"""How long an answer goes on that nobody hears: as long as a long one takes."""
_KEPT = 100  # requests that are looked at for that; more are hardly left within that time
_CHAT_MEMBERS = frozenset(msgspec.structs.fields(Chat)[place].encode_name for place in range(len(msgspec.structs.fields(Chat))))
