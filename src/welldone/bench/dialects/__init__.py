"""The APIs that the load test can use."""

from collections.abc import Mapping

from welldone.bench.dialects.base import BenchDialect
from welldone.bench.dialects.chat import ChatBenchDialect
from welldone.bench.dialects.messages import MessagesBenchDialect
from welldone.bench.dialects.responses import ResponsesBenchDialect

DIALECTS: Mapping[str, BenchDialect] = {
    "chat": ChatBenchDialect(),
    "responses": ResponsesBenchDialect(),
    "messages": MessagesBenchDialect(),
}
"""By name of the endpoint."""

__all__ = ["DIALECTS", "BenchDialect"]
