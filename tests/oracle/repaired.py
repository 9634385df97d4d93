"""Repaired streams as cases: every recorded stream, and every wrong example of the rule pages.

The expected result is read from the repaired bytes with a minimal reader, independent of the package.
"""

import json
from typing import Any

from tests.oracle.cases import Case
from tests.oracle.reply import Choice, Reply, choice
from tests.recorded.traces import recorded_traces
from tests.rules.pages import PAGES, read_page
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.request_facts import RequestFacts, read_request_facts
from welldone.rules.trace import Trace
from welldone.stream.pipeline import StreamPipeline


def repaired_cases() -> list[Case]:
    """Return all repaired streams."""
    streams = [(reply.name, reply.trace) for reply in recorded_traces() if reply.is_stream]
    blocks = [block for path in sorted(PAGES.glob("*-*.md")) for block in read_page(path)]
    blocks = [block for block in blocks if block.trace.endpoint in ("chat", "completions")]
    streams += [(block.name, block.trace) for block in blocks if _is_stream(block.trace)]
    # Not all clients read calls of custom tools.
    cases = [_case(name, trace) for name, trace in streams if b'"custom":' not in trace.body]
    # A wrong total is forwarded; the AI SDK recomputes it.
    return [case for case in cases if _is_sum(case.expected["usage"])]


def _is_sum(usage: list[int] | None) -> bool:
    return usage is None or usage[0] + usage[1] == usage[2]


def _is_stream(trace: Trace) -> bool:
    return (trace.status or 200) == 200 and not trace.body.lstrip().startswith(b"{")


def _case(name: str, trace: Trace) -> Case:
    endpoint = Endpoint(trace.endpoint)
    head = Envelope("chatcmpl-1" if endpoint is Endpoint.CHAT else "cmpl-1", 1700000000, "m")
    # Not `function_call`: current clients ignore it.
    request = {key: value for key, value in (trace.request or {}).items() if key != "functions"}
    facts = RequestFacts() if trace.request is None else read_request_facts(request)
    pipeline = StreamPipeline(endpoint, fallback=head, facts=facts)
    body = pipeline.feed(trace.body) + pipeline.close()
    return Case(f"repaired {name}", trace.endpoint, body, plain(body))


def plain(body: bytes) -> Reply:
    """Read a correct stream."""
    reply = Reply(choices={}, usage=None, error=None)
    for line in body.decode().split("\n"):
        if line.startswith("data: {"):
            _add(reply, json.loads(line.removeprefix("data: ")))
    return reply


def _add(reply: Reply, chunk: dict[str, Any]) -> None:
    if "error" in chunk:
        reply["error"] = chunk["error"]["message"]
    if chunk.get("usage"):
        reply["usage"] = [chunk["usage"][f"{name}_tokens"] for name in ("prompt", "completion", "total")]
    for part in chunk.get("choices", []):
        into = reply["choices"].setdefault(part["index"], choice())
        delta = part.get("delta", {})
        into["role"] += delta.get("role", "")
        into["text"] += delta.get("content", "") + part.get("text", "")
        into["reasoning"] += delta.get("reasoning_content", "")
        into["refusal"] += delta.get("refusal", "")
        into["finish"] = into["finish"] or part["finish_reason"]
        for call in delta.get("tool_calls", []):
            _add_call(into, call)


def _add_call(into: Choice, call: dict[str, Any]) -> None:
    if "id" in call:
        into["tools"].append([call["id"], call["function"]["name"], ""])
    into["tools"][call["index"]][2] += call["function"]["arguments"]
