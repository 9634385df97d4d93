"""What a reply tells of how it came to be, where that is wanted: what took how long, and what was mended."""

from collections.abc import Mapping

from welldone.gateway.backends import BackendLease
from welldone.protocol.dialects.same_dialect import PassthroughRepairer
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline
from welldone.server.observe.timing import StreamTimes

REPAIRS_HEADER = "x-welldone-repairs"
UPSTREAM_HEADER = "x-welldone-upstream"
TIMING_HEADER = "Server-Timing"
BROKEN_JSON_HEADER = "x-welldone-broken-json"
PRINTED_CALLS_HEADER = "x-welldone-printed-calls"
"""How many answers look like a tool call that the model wrote as text."""
REPORT_REQUEST_HEADER = "x-welldone-report"
"""The header with which a client asks for it."""
_RULES_LIMIT = 64  # in a header, which proxies cut at 4 to 8 KB


class ReportHeaders:
    """The report on one answer."""

    def __init__(self, request_id: str, times: StreamTimes, *, is_requested: bool, shows_upstreams: bool) -> None:
        self.request_id = request_id
        self.times = times
        self.upstream = ""
        """Who answered last."""
        self.attempts = 0
        self.failed_attempts: list[str] = []
        """Who did not answer, and why: `lab:timeout`."""
        self._is_requested = is_requested
        self._shows_upstreams = shows_upstreams  # whether this client may see the names of upstreams

    def add_attempt(self, lease: BackendLease) -> None:
        """A part is asked for here."""
        self.attempts += 1
        if lease.upstream is not None:
            self.upstream = lease.name

    @property
    def trailer_names(self) -> tuple[str, ...]:
        """What a stream tells at its end."""
        if not self._is_requested:
            return ()
        return (
            REPAIRS_HEADER,
            BROKEN_JSON_HEADER,
            PRINTED_CALLS_HEADER,
            TIMING_HEADER,
            *((UPSTREAM_HEADER,) if self._shows_upstreams else ()),
        )

    def headers(self) -> Mapping[str, str]:
        """What is known when the reply begins."""
        if not self._is_requested:
            return {}
        return {TIMING_HEADER: self._timing(), **self._upstream_header()}

    def trailers(self, pipeline: StreamPipeline | BufferedPipeline | PassthroughRepairer) -> Mapping[str, str]:
        """What is known when it has ended."""
        if not self._is_requested:
            return {}
        rules = [note.rule for note in pipeline.repair_log.entries()]
        broken = f"content={pipeline.invalid_json_count}, arguments={pipeline.invalid_arguments_count}"
        told = {
            REPAIRS_HEADER: ", ".join(rules[:_RULES_LIMIT]),
            BROKEN_JSON_HEADER: broken,
            PRINTED_CALLS_HEADER: str(pipeline.text_tool_calls),
        }
        # The upstream again: a stream that waited began before one was chosen, and an attempt may have failed since.
        return {**told, TIMING_HEADER: self._timing(), **self._upstream_header()}

    def _upstream_header(self) -> dict[str, str]:
        return {UPSTREAM_HEADER: self.upstream} if self.upstream and self._shows_upstreams else {}

    def _timing(self) -> str:
        """As https://www.w3.org/TR/server-timing/ has it, in milliseconds."""
        times = self.times
        known = (("queue", times.queued_s), ("first", times.ttft_s), ("total", times.elapsed_s))
        return ", ".join(f"{name};dur={seconds * 1000:.1f}" for name, seconds in known if seconds is not None)
