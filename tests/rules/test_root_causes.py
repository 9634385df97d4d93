"""Root causes: findings that follow from another finding of the same reply name it."""

import msgspec
import pytest

from tests.rules.pages import PAGES, read_page
from welldone.core.catalog import RULES
from welldone.rules.judge import CONSEQUENCES, CauseScope, LintFinding, RootCauses, judge
from welldone.rules.trace import Trace

HEAD = (
    ("Content-Type", "text/event-stream"),
    ("Transfer-Encoding", "chunked"),
    ("Cache-Control", "no-cache"),
    ("X-Accel-Buffering", "no"),
)
RIGHT = [example for page in sorted(PAGES.glob("*-*.md")) for example in read_page(page) if example.is_correct]


def _causes(trace: Trace) -> set[str]:
    return {finding.rule for finding in judge(trace).findings if finding.cause is None}


def test_the_table_has_known_rules_and_no_cycle() -> None:
    order = list(CONSEQUENCES)
    for index, (cause, consequences) in enumerate(CONSEQUENCES.items()):
        assert {cause, *consequences} <= RULES.keys()
        assert not consequences.keys() & set(order[: index + 1])


@pytest.mark.tier3
@pytest.mark.parametrize("endpoint", ["chat", "completions", "responses", "messages", "gemini"])
def test_a_correct_stream_truncated_anywhere_has_one_cause(endpoint: str) -> None:
    for example in RIGHT:
        body = example.trace.body
        if example.trace.endpoint != endpoint or b"data:" not in body or b"error" in body:
            continue  # err-body-shape also applies to a truncated error event
        for size in range(1, len(body), 7):
            trace = msgspec.structs.replace(
                example.trace, body=body[:size], complete=False, headers=HEAD, status=200, chunk_sizes=None
            )
            assert len(_causes(trace)) == 1, (example.name, size, _causes(trace))


@pytest.mark.parametrize(
    ("endpoint", "cause", "body"),
    [
        ("chat", "end-no-early-eof", b'{"id":"chatcmpl-1","object":"chat.completion","choices":[{"ind'),
        ("messages", "msg-no-early-eof", b'{"id":"msg_1","type":"message","role":"assistant","content":[{"ty'),
        ("gemini", "gem-no-early-eof", b'{"candidates":[{"content":{"parts":[{"te'),
        ("responses", "resp-terminal-once", b'{"id":"resp_1","object":"response","output":[{"type":"mess'),
    ],
)
def test_a_truncated_reply_has_one_cause(endpoint: str, cause: str, body: bytes) -> None:
    path = "/v1/models/m:generateContent" if endpoint == "gemini" else None
    trace = Trace(body=body, endpoint=endpoint, path=path, request={"stream": False}, complete=False)
    assert _causes(trace) == {cause}
    # If the body is complete, the JSON is invalid.
    assert _causes(msgspec.structs.replace(trace, complete=True)) == {"enc-strict-json"}


def test_truncation_does_not_explain_violations_in_earlier_frames() -> None:
    chunk = (
        b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    )
    body = b"data: " + chunk + b'{"role":"assistant","content":""},"finish_reason":null}],"x":NaN}\n\ndata: ' + chunk
    found = {(finding.rule, finding.frame): finding for finding in judge(Trace(body=body)).findings}
    assert found["enc-strict-json", 1].cause is None
    assert found["enc-strict-json", 2].cause == "end-no-early-eof"
    assert found["enc-strict-json", 2].observed.startswith("truncated JSON: ")
    assert "NaN" not in found["enc-strict-json", 2].expected


def found_in(rule: str, frame: int | None) -> LintFinding:
    return LintFinding(rule, "breaks", frame, None, "", "", ())


def test_the_root_of_a_chain_of_causes_is_reported() -> None:
    found = [found_in("end-no-early-eof", 1), found_in("enc-strict-json", 2), found_in("ext-logprobs-finite", 2)]
    causes = RootCauses(found, 2)
    assert [causes.cause_of(one.rule, one.frame) for one in found] == [None, "end-no-early-eof", "end-no-early-eof"]
    both = RootCauses([*found, found_in("enc-strict-json", 1)], 2)
    assert both.cause_of("ext-logprobs-finite", 2) == "enc-strict-json"


def test_a_cause_does_not_explain_findings_in_other_frames() -> None:
    causes = RootCauses([found_in("fin-exactly-once", 4)], 5)
    assert CONSEQUENCES["fin-exactly-once"]["fin-last-of-choice"] is CauseScope.SAME_FRAME
    assert causes.cause_of("fin-last-of-choice", 4) == "fin-exactly-once"
    assert causes.cause_of("fin-last-of-choice", 5) is None
