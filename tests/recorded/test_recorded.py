"""Recorded streams of real servers: findings of the judge, and repair."""

import os
from pathlib import Path

from tests.recorded.traces import RECORDED, RecordedTrace, read_content, recorded_traces
from tests.table import table
from welldone.core.catalog import Severity
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.request_facts import RequestFacts, read_request_facts
from welldone.rules.judge import has_content, judge
from welldone.rules.trace import Trace
from welldone.stream.pipeline import StreamPipeline

REPLIES = recorded_traces()
STREAMS = [reply for reply in REPLIES if reply.is_stream]
FALLBACK = {Endpoint.CHAT: Envelope("chatcmpl-1", 1, "m"), Endpoint.COMPLETIONS: Envelope("cmpl-1", 1, "m")}


def _name(reply: RecordedTrace) -> str:
    return reply.name


def _findings(server: Path) -> str:
    """Findings in the replies of one server, as text."""
    lines = []
    for reply in REPLIES:
        if not reply.name.startswith(f"{server.name}/") or not has_content(reply.trace):
            continue
        report = judge(reply.trace)
        lines.append(f"{reply.name.partition('/')[2]}: {report.verdict}, {report.frames} frames")
        for rule, count in sorted(report.counts.items()):
            first = next(finding for finding in report.findings if finding.rule == rule)
            position = "the whole reply" if first.frame is None else f"frame {first.frame}, byte {first.byte}"
            lines.append(f"  {rule} {first.severity} x{count}, {position}: {first.observed[:100]}")
    return "\n".join(lines) + "\n"


@table("server", sorted({RECORDED / reply.name.partition("/")[0] for reply in REPLIES}), ids=lambda path: path.name)
def test_the_findings_equal_the_snapshot(server: Path) -> None:
    snapshot = server / "FINDINGS.txt"
    found = _findings(server)
    if os.environ.get("WELLDONE_SNAPSHOTS"):
        snapshot.write_text(found, "utf-8")
    assert snapshot.read_text("utf-8") == found


@table(
    ("name", "described"),
    [
        ("ik_467_before", {"delta-role-first", "use-only-if-asked", "end-done-sent"}),
        ("lightllm_1262_before", {"delta-role-once", "delta-role-content-empty", "end-done-sent"}),
        ("llamacpp_467", {"env-created-constant", "delta-role-content-empty", "use-only-if-asked"}),
        (
            "localai_340_before",
            {
                *("sse-no-event-name", "sse-no-empty-data", "delta-role-once", "env-id-present", "env-created-int"),
                *("n-index-int", "use-not-zero", "end-done-sent"),
            },
        ),
        ("localai_3_7_before", {"fin-null-not-empty", "delta-final-empty"}),
        ("openai_gpt4_0314", {"delta-role-content-empty"}),
    ],
)
def test_a_quoted_stream_violates_the_rules_of_its_note(name: str, described: set[str]) -> None:
    (reply,) = (reply for reply in REPLIES if reply.name == f"quoted/{name}")
    assert described <= judge(reply.trace).counts.keys()


def _fix(reply: RecordedTrace, *, is_request_known: bool) -> tuple[StreamPipeline, bytes]:
    endpoint = Endpoint(reply.trace.endpoint)
    request = reply.trace.request if is_request_known else None
    facts = RequestFacts() if request is None else read_request_facts(request)
    pipeline = StreamPipeline(endpoint, fallback=FALLBACK[endpoint], facts=facts)
    return pipeline, pipeline.feed(reply.trace.body) + pipeline.close()


@table("is_request_known", [True, False], ids=["request known", "request not known"])
@table("reply", STREAMS, ids=_name)
def test_a_repaired_stream_has_no_finding_that_breaks_clients(reply: RecordedTrace, is_request_known: bool) -> None:
    _, fixed = _fix(reply, is_request_known=is_request_known)
    request = reply.trace.request if is_request_known else None
    report = judge(Trace(body=fixed, endpoint=reply.trace.endpoint, request=request))
    breaking = {finding.rule for finding in report.findings if finding.severity == Severity.BREAKS}
    assert breaking <= {CALL_AS_TEXT}


@table("reply", STREAMS, ids=_name)
def test_a_repaired_stream_has_the_content_of_the_original(reply: RecordedTrace) -> None:
    _, fixed = _fix(reply, is_request_known=False)
    sent, repaired = read_content(reply.trace.body), read_content(fixed)
    assert repaired.texts == sent.texts
    assert repaired.arguments == sent.arguments
    assert repaired.usage == sent.usage
    if sent.error is not None:
        assert repaired.error == sent.error
    elif reply.name in DISCONNECTED:
        assert (repaired.error, repaired.finishes) == ("the server's answer ended without a finish_reason", {})
    else:
        assert repaired.error is None
        assert repaired.finishes == {index: RENAMED.get(reply.name, reason) for index, reason in sent.finishes.items()}


CALL_AS_TEXT = "tool-no-markup-leak"
"""A rule whose violation is reported, and repaired only with `json_tool_calls`."""

DISCONNECTED = {"ik/disconnect_stream", "llamacpp/disconnect_stream"}
"""Streams during which the client disconnected."""
RENAMED = {"vllm/chat_tools_named_stream": "tool_calls"}
"""Tool call that finishes with `stop`: correct if the request names the tool, but here the request is unknown."""


@table("reply", STREAMS, ids=_name)
def test_usage_is_stored_even_if_the_client_did_not_request_it(reply: RecordedTrace) -> None:
    pipeline, fixed = _fix(reply, is_request_known=True)
    sent = read_content(reply.trace.body).usage
    counts = pipeline.usage and [
        pipeline.usage.prompt_tokens,
        pipeline.usage.completion_tokens,
        pipeline.usage.total_tokens,
    ]
    assert counts == sent
    is_requested = reply.trace.request is None or read_request_facts(reply.trace.request).include_usage
    assert read_content(fixed).usage == (sent if is_requested else None)


@table("reply", STREAMS, ids=_name)
def test_the_repair_log_equals_the_findings_of_the_judge(reply: RecordedTrace) -> None:
    pipeline, _ = _fix(reply, is_request_known=True)
    found = {rule for rule in judge(reply.trace).counts if not rule.startswith(("http-", "sse-whole-event"))}
    recorded = {repair.rule for repair in pipeline.repair_log.entries()}
    # A pipeline sends no status, and counts calls as text in its result.
    assert recorded == found - {"ext-logprobs-align", "err-status-before-stream", CALL_AS_TEXT}
