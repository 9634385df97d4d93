"""Ground truth for answers in named events: what comes at known times is written down at these times.

Right streams are made by the writers of the dialects; the short way of events that are alike must hear what the long
way hears.
"""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.net.aio import run
from tests.recorded_dialects.traces import recorded
from welldone.bench.dialects import DIALECTS, alike
from welldone.bench.dialects.alike import Alike
from welldone.bench.listener import Listener
from welldone.bench.record import End, Record
from welldone.net.outbound import OutboundError
from welldone.wire.dialects.messages import Messages
from welldone.wire.dialects.responses import Responses
from welldone.wire.events import Event, Failure, Finish, Opening, Reasoning, Refusal, Text, ToolArguments, ToolCall, Usage
from welldone.wire.head import Head
from welldone.wire.native import Native
