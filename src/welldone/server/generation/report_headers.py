"""Headers and trailers that report on a response: timing, repairs, and the upstream. Sent on request."""

from collections.abc import Sequence

from welldone.protocol.result import RepairResult
from welldone.server.observe.timing import StreamTimes

REPAIRS_HEADER = "x-welldone-repairs"
UPSTREAM_HEADER = "x-welldone-upstream"
TIMING_HEADER = "Server-Timing"
BROKEN_JSON_HEADER = "x-welldone-broken-json"
CONTINUED_HEADER = "x-welldone-continued"
"""How the answer was continued after a failure of its backend: `prefill`, `replay`."""
PRINTED_CALLS_HEADER = "x-welldone-printed-calls"
"""Number of choices that look like a tool call written as text."""
IGNORED_HEADER = "x-welldone-ignored-fields"
"""Fields of the request that the upstream's API cannot have, and tools that only OpenAI's servers run."""
REPORT_REQUEST_HEADER = "x-welldone-report"
"""Request header that asks for the report."""
_RULES_LIMIT = 64  # proxies limit a header to 4 to 8 KB


class ReportHeaders:
    """The report on one response."""

    def __init__(self, times: StreamTimes, shows_upstreams: bool, ignored_fields: Sequence[str] = ()) -> None:
        self._times = times
        self._ignored = {IGNORED_HEADER: ", ".join(ignored_fields[:_RULES_LIMIT])} if ignored_fields else {}
        self._shows_upstreams = shows_upstreams  # this client may see the names of upstreams
        names = (REPAIRS_HEADER, BROKEN_JSON_HEADER, PRINTED_CALLS_HEADER, CONTINUED_HEADER, TIMING_HEADER)
        self.trailer_names: tuple[str, ...] = (*names, UPSTREAM_HEADER) if shows_upstreams else names
        """Names of the trailers of a stream."""

    def headers(self, upstream: str) -> dict[str, str]:
        """Return the headers at the start of the response, with the upstream of the last attempt."""
        return {TIMING_HEADER: self._timing(), **self._ignored, **self._upstream_header(upstream)}

    def trailers(self, result: RepairResult, upstream: str, continued: Sequence[str]) -> dict[str, str]:
        """Return the trailers at its end."""
        rules = [entry.rule for entry in result.repairs]
        broken_json = f"content={result.invalid_json_count}, arguments={result.invalid_arguments_count}"
        return {
            REPAIRS_HEADER: ", ".join(rules[:_RULES_LIMIT]),
            BROKEN_JSON_HEADER: broken_json,
            PRINTED_CALLS_HEADER: str(result.text_tool_calls),
            CONTINUED_HEADER: ", ".join(continued),
            TIMING_HEADER: self._timing(),
            # Again: the headers of a queued stream precede the choice of an upstream, and attempts may have failed.
            **self._upstream_header(upstream),
        }

    def _upstream_header(self, upstream: str) -> dict[str, str]:
        return {UPSTREAM_HEADER: upstream} if upstream and self._shows_upstreams else {}

    def _timing(self) -> str:
        """Format times in milliseconds (https://www.w3.org/TR/server-timing/)."""
        times = self._times
        known = (("queue", times.queued_s), ("first", times.ttft_s), ("total", times.elapsed_s))
        return ", ".join(f"{name};dur={seconds * 1000:.1f}" for name, seconds in known if seconds is not None)
