"""Judging of streams and replies: a report, and an assertion for tests.

`assert_valid` takes responses of httpx, requests, aiohttp, Flask and Django by their attributes; none is imported.
"""

from collections.abc import Collection, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

from welldone.core.catalog import RULES, Detection
from welldone.core.events import WelldoneError
from welldone.library.arguments import (
    EndpointName,
    RequestBody,
    parse_endpoint,
    parse_request,
    parse_rules,
    require_bytes,
)
from welldone.rules.judge import LintFinding, LintReport, judge
from welldone.rules.trace import Trace, endpoint_of_path, read_capture


class HttpResponse(Protocol):
    """Response of an HTTP client, as far as all of them agree."""

    @property
    def headers(self) -> Any:  # noqa: ANN401 - each client has its own type
        """The headers, as a mapping."""


LintInput: TypeAlias = bytes | str | HttpResponse


class InvalidStreamError(WelldoneError, AssertionError):
    """A stream or reply breaks rules. `report` has the findings."""

    def __init__(self, report: LintReport) -> None:
        super().__init__(_describe(report))
        self.report = report


def lint(
    data: bytes | str,
    endpoint: EndpointName | None = None,
    *,
    request: RequestBody = None,
    rules: Collection[str] | None = None,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> LintReport:
    """Judge a captured stream or reply: its body, or the output of `curl -i` or `curl -i --raw`.

    The endpoint is guessed if it is None. Rules about the request, the status or the headers are judged only if these
    are known. `rules` limits the report to these rule ids.

    Raises:
        TypeError, ValueError: an argument is wrong. No content raises.
    """
    trace = read_capture(_require_data(data, "lint"))
    return _judge(trace, endpoint, request=request, rules=rules, status=status, headers=headers)


def assert_valid(
    response: LintInput,
    endpoint: EndpointName | None = None,
    *,
    request: RequestBody = None,
    rules: Collection[str] | None = None,
    strict: bool = False,
) -> LintReport:
    """Fail a test if a stream or reply breaks a rule that is not advice; with `strict`, if it breaks any rule.

    Takes what `lint` takes, or a response that was read: of httpx, requests, aiohttp, Flask, Django or Starlette's test
    client. Status, headers, endpoint and request are taken from it.

    Raises:
        InvalidStreamError: an AssertionError that lists the broken rules, where, and which clients they affect.
    """
    __tracebackhide__ = True
    if isinstance(response, str | bytes | bytearray | memoryview):
        report = lint(_require_data(response, "assert_valid"), endpoint, request=request, rules=rules)
    else:
        known = _read_response(response)
        report = _judge(known, endpoint, request=known.request if request is None else request, rules=rules)
    if not report.ok or (strict and report.findings):
        raise InvalidStreamError(report)
    return report


def _judge(
    trace: Trace,
    endpoint: EndpointName | None,
    *,
    request: RequestBody,
    rules: Collection[str] | None,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> LintReport:
    if rules is not None:
        rules = parse_rules(rules, "rules")
        for rule in sorted(rules):
            if RULES[rule].detection is Detection.PROBE:
                raise ValueError(f"{rule} cannot be judged from one reply; welldone check tests a server for it")
    trace = msgspec.structs.replace(
        trace,
        endpoint=trace.endpoint if endpoint is None else parse_endpoint(endpoint).value,
        request=parse_request(request),
        status=trace.status if status is None else status,
        headers=trace.headers if headers is None else tuple((str(name), str(headers[name])) for name in headers),
    )
    return judge(trace, rules)


def _require_data(data: object, function: str) -> bytes:
    return data.encode("utf-8", "surrogateescape") if isinstance(data, str) else require_bytes(data, function)


# Responses of HTTP clients.


def _read_response(response: Any) -> Trace:  # noqa: ANN401 - read by its attributes
    body = _read_body(response, _RESPONSE_BODIES)
    status = getattr(response, "status_code", None) or getattr(response, "status", None)
    headers = getattr(response, "headers", None)
    if body is None or not isinstance(status, int) or headers is None:
        raise TypeError(
            f"assert_valid takes bytes, or a response with status, headers and a body that was read; "
            f"got {type(response).__name__}. Read it first (await response.read()), or pass its bytes"
        )
    request = getattr(response, "request", None)
    trace = read_capture(body)
    path = _read_path(response, request)
    return msgspec.structs.replace(
        trace,
        endpoint=trace.endpoint if path is None else endpoint_of_path(path) or trace.endpoint,
        path=path,
        status=status,
        headers=tuple((str(name), str(value)) for name, value in headers.items()),
        request=parse_request(_read_body(request, _REQUEST_BODIES)),
    )


def _read_path(*sources: object) -> str | None:
    """Return the first path of an endpoint, with its query: of a URL as a string (requests) or an object (httpx)."""
    for source in sources:
        url = getattr(source, "url", None)
        path = str(url) if isinstance(url, str) or hasattr(url, "query") else getattr(url, "path", None)
        if isinstance(path, str) and endpoint_of_path(path) is not None:
            return path
    return None


# httpx, requests, Django: content; Flask and Werkzeug: data; aiohttp after `await response.read()`: _body.
_RESPONSE_BODIES = ("content", "data", "_body")
_REQUEST_BODIES = ("content", "body", "data")  # httpx: content; requests: body; Werkzeug: data


def _read_body(message: object, names: tuple[str, ...]) -> bytes | None:
    for name in names:
        try:
            value = getattr(message, name, None)
        except Exception:  # noqa: BLE001 - httpx raises its own exception for a body that was not read
            continue
        if isinstance(value, str) and names is _REQUEST_BODIES:
            return value.encode()
        if isinstance(value, bytes):
            return value
    return None


# The message of the assertion.


def _describe(report: LintReport) -> str:
    first: dict[str, LintFinding] = {}
    for finding in report.findings:
        if finding.cause is None or finding.cause not in report.counts:
            first.setdefault(finding.rule, finding)
    rules = f"{len(report.counts)} rule{'s' * (len(report.counts) != 1)}"
    frames = f"{report.frames} frame{'s' * (report.frames != 1)}"
    lines = [f"the reply breaks {rules} ({frames}, {report.rules} rules judged)"]
    for rule, finding in first.items():
        lines += ["", *_describe_finding(finding, report.counts[rule])]
    if others := [rule for rule in report.counts if rule not in first]:
        lines += ["", f"These follow from the others: {', '.join(others)}"]
    return "\n".join(lines)


def _describe_finding(finding: LintFinding, count: int) -> list[str]:
    position = "the whole reply" if finding.frame is None else f"frame {finding.frame}, byte {finding.byte}"
    repeats = f", and {count - 1} more" if count > 1 else ""
    lines = [f"{finding.rule} ({finding.label}), {position}{repeats}: {RULES[finding.rule].summary}"]
    lines.append(f"  observed  {finding.observed}")
    if finding.expected:
        lines.append(f"  expected  {finding.expected}")
    lines += [f"  affects   {client}" for client in finding.affects]
    return [*lines, f"  more      welldone rules {finding.rule}"]
