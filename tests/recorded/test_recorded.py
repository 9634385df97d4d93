"""Real streams of real servers: what the judge finds in them, and what repair makes of them."""

import os
from pathlib import Path

from tests.recorded.traces import RECORDED, Recorded, recorded, said
from tests.table import table
from welldone.protocol.catalog.rule import Severity
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.pipeline import StreamPipeline
from welldone.protocol.request_facts import RequestFacts, read_request_facts
from welldone.rules.judge import has_content, judge
from welldone.rules.trace import Trace

REPLIES = recorded()
STREAMS = [reply for reply in REPLIES if reply.is_stream]
FALLBACK = {Endpoint.CHAT: Envelope("chatcmpl-1", 1, "m"), Endpoint.COMPLETIONS: Envelope("cmpl-1", 1, "m")}


def _name(reply: Recorded) -> str:
    return reply.name


def _findings(server: Path) -> str:
    """What the judge says of one server's replies, as a person would list it."""
    lines = []
    for reply in REPLIES:
        if not reply.name.startswith(f"{server.name}/") or not has_content(reply.trace):
            continue
        judgement = judge(reply.trace)
        lines.append(f"{reply.name.partition('/')[2]}: {judgement.verdict}, {judgement.frames} frames")
        for rule, count in sorted(judgement.counts.items()):
            first = next(finding for finding in judgement.findings if finding.rule == rule)
            place = "the whole reply" if first.frame is None else f"frame {first.frame}, byte {first.byte}"
            lines.append(f"  {rule} {first.severity} x{count}, {place}: {first.observed[:100]}")
    return "\n".join(lines) + "\n"


@table("server", sorted({RECORDED / reply.name.partition("/")[0] for reply in REPLIES}), ids=lambda path: path.name)
def test_the_findings_are_those_of_the_snapshot(server: Path) -> None:
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
def test_a_quoted_stream_breaks_what_its_note_describes(name: str, described: set[str]) -> None:
    (reply,) = (reply for reply in REPLIES if reply.name == f"quoted/{name}")
    assert described <= judge(reply.trace).counts.keys()


def _fix(reply: Recorded, *, is_request_known: bool) -> tuple[StreamPipeline, bytes]:
    endpoint = Endpoint(reply.trace.endpoint)
    request = reply.trace.request if is_request_known else None
    asked = RequestFacts() if request is None else read_request_facts(request)
    pipe = StreamPipeline(endpoint, fallback=FALLBACK[endpoint], facts=asked)
    return pipe, pipe.feed(reply.trace.body) + pipe.close()


@table("is_request_known", [True, False], ids=["request known", "request not known"])
@table("reply", STREAMS, ids=_name)
def test_a_repaired_stream_breaks_no_client(reply: Recorded, is_request_known: bool) -> None:
    _, fixed = _fix(reply, is_request_known=is_request_known)
    request = reply.trace.request if is_request_known else None
    judgement = judge(Trace(body=fixed, endpoint=reply.trace.endpoint, request=request))
    assert [finding for finding in judgement.findings if finding.severity == Severity.BREAKS] == []


@table("reply", STREAMS, ids=_name)
def test_a_repaired_stream_says_what_the_server_said(reply: Recorded) -> None:
    _, fixed = _fix(reply, is_request_known=False)
    sent, kept = said(reply.trace.body), said(fixed)
    assert kept.texts == sent.texts
    assert kept.arguments == sent.arguments
    assert kept.usage == sent.usage
    if sent.error is not None:
        assert kept.error == sent.error
    elif reply.name in CUT:
        assert (kept.error, kept.finishes) == ("the server's stream ended before the answer was whole", {})
    else:
        assert kept.error is None
        assert kept.finishes == {index: RENAMED.get(reply.name, reason) for index, reason in sent.finishes.items()}


CUT = {"ik/disconnect_stream", "llamacpp/disconnect_stream"}
"""Streams that the client left before their end."""
RENAMED = {"vllm/chat_tools_named_stream": "tool_calls"}
"""A call that ends with `stop`: right where the tool was named in the request, which repair does not know here."""


@table("reply", STREAMS, ids=_name)
def test_usage_is_kept_for_the_log_also_where_the_client_did_not_ask(reply: Recorded) -> None:
    pipe, fixed = _fix(reply, is_request_known=True)
    sent = said(reply.trace.body).usage
    counted = pipe.usage and [pipe.usage.prompt_tokens, pipe.usage.completion_tokens, pipe.usage.total_tokens]
    assert counted == sent
    is_wanted = reply.trace.request is None or read_request_facts(reply.trace.request).include_usage
    assert said(fixed).usage == (sent if is_wanted else None)


@table("reply", STREAMS, ids=_name)
def test_what_is_noted_is_what_the_judge_finds(reply: Recorded) -> None:
    pipe, _ = _fix(reply, is_request_known=True)
    found = {rule for rule in judge(reply.trace).counts if not rule.startswith(("http-", "sse-whole-event"))}
    noted = {note.rule for note in pipe.repair_log.entries()}
    assert noted == found - {"ext-logprobs-align"}
