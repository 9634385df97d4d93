"""All that we repair, as cases: every recorded stream, and every wrong example of the rule pages.

What a client must make of a repaired stream is read from its bytes as plainly as possible, by none of our code.
"""

import json
from typing import Any

from tests.oracle.cases import Case
from tests.oracle.reply import Choice, Reply, choice
from tests.recorded.traces import recorded
from tests.rules.pages import PAGES, read_page
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.pipeline import StreamPipeline
from welldone.protocol.request_facts import RequestFacts, read_request_facts
from welldone.rules.trace import Trace


def repaired_cases() -> list[Case]:
    """Every stream that repair was tried on elsewhere."""
    streams = [(reply.name, reply.trace) for reply in recorded() if reply.is_stream]
    blocks = [block for path in sorted(PAGES.glob("*-*.md")) for block in read_page(path)]
    blocks = [block for block in blocks if block.trace.endpoint in ("chat", "completions")]
    streams += [(block.name, block.trace) for block in blocks if _is_stream(block.trace)]
    # The clients of the oracle read calls of functions; not all of them read calls of custom tools.
    cases = [_case(name, trace) for name, trace in streams if b'"custom":' not in trace.body]
    # A total that is not the sum is forwarded, and the AI SDK adds it up anew.
    return [case for case in cases if _is_sum(case.expected["usage"])]


def _is_sum(usage: list[int] | None) -> bool:
    return usage is None or usage[0] + usage[1] == usage[2]


def _is_stream(trace: Trace) -> bool:
    return (trace.status or 200) == 200 and not trace.body.lstrip().startswith(b"{")


def _case(name: str, trace: Trace) -> Case:
    endpoint = Endpoint(trace.endpoint)
    head = Envelope("chatcmpl-1" if endpoint is Endpoint.CHAT else "cmpl-1", 1700000000, "m")
    # Not the deprecated form of calls: clients of today ignore it.
    request = {key: value for key, value in (trace.request or {}).items() if key != "functions"}
    asked = RequestFacts() if trace.request is None else read_request_facts(request)
    pipe = StreamPipeline(endpoint, fallback=head, facts=asked)
    body = pipe.feed(trace.body) + pipe.close()
    return Case(f"repaired {name}", trace.endpoint, body, plain(body))


def plain(body: bytes) -> Reply:
    """What a right stream says."""
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
