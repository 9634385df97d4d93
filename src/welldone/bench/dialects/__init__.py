"""The APIs that the load test can use."""

from collections.abc import Mapping

from welldone.bench.dialects.base import BenchDialect
from welldone.bench.dialects.chat import CHAT
from welldone.bench.dialects.messages import MESSAGES
from welldone.bench.dialects.responses import RESPONSES

DIALECTS: Mapping[str, BenchDialect] = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}
"""By name of the endpoint."""
