"""The APIs that the load test can use."""

from collections.abc import Mapping

from welldone.bench.dialects.base import BenchDialect
from welldone.bench.dialects.chat import CHAT
from welldone.bench.dialects.events import MESSAGES, RESPONSES

DIALECTS: Mapping[str, BenchDialect] = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}
"""By name of the endpoint."""
