"""Root causes: what follows from another finding of the same reply is named under it."""

import msgspec
import pytest

from tests.rules.pages import PAGES, read_page
from welldone.protocol.catalog import RULES_BY_ID
from welldone.rules.judge import judge
from welldone.rules.root_causes import CONSEQUENCES, CauseScope, RootCauses
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


def test_the_table_names_rules_and_has_no_circle() -> None:
    order = list(CONSEQUENCES)
    for place, (cause, consequences) in enumerate(CONSEQUENCES.items()):
        assert {cause, *consequences} <= RULES_BY_ID.keys()
        assert not consequences.keys() & set(order[: place + 1])


@pytest.mark.tier3
@pytest.mark.parametrize("endpoint", ["chat", "completions", "responses", "messages"])
def test_a_right_stream_that_is_cut_anywhere_has_one_cause(endpoint: str) -> None:
    for example in RIGHT:
        body = example.trace.body
        if example.trace.endpoint != endpoint or b"data:" not in body or b"error" in body:
            continue  # an error event that is cut has a shape of its own to keep
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
        ("responses", "resp-terminal-once", b'{"id":"resp_1","object":"response","output":[{"type":"mess'),
    ],
)
def test_a_whole_reply_that_is_cut_has_one_cause(endpoint: str, cause: str, body: bytes) -> None:
    trace = Trace(body=body, endpoint=endpoint, request={"stream": False}, complete=False)
    assert _causes(trace) == {cause}
    # Where the body came to its end, it is the JSON that is wrong.
    assert _causes(msgspec.structs.replace(trace, complete=True)) == {"enc-strict-json"}


def test_what_is_wrong_elsewhere_in_a_cut_stream_is_not_explained_by_the_cut() -> None:
    chunk = (
        b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":'
    )
    body = b"data: " + chunk + b'{"role":"assistant","content":""},"finish_reason":null}],"x":NaN}\n\ndata: ' + chunk
    found = {(finding.rule, finding.frame): finding for finding in judge(Trace(body=body)).findings}
    assert found["enc-strict-json", 1].cause is None
    assert found["enc-strict-json", 2].cause == "end-no-early-eof"
    assert found["enc-strict-json", 2].observed.startswith("truncated JSON: ")
    assert "NaN" not in found["enc-strict-json", 2].expected


class Found(msgspec.Struct):
    rule: str
    frame: int | None


def test_the_cause_of_a_cause_is_named() -> None:
    found = [Found("end-no-early-eof", 1), Found("enc-strict-json", 2), Found("ext-logprobs-finite", 2)]
    causes = RootCauses(found, 2)
    assert [causes.cause_of(one.rule, one.frame) for one in found] == [None, "end-no-early-eof", "end-no-early-eof"]
    both = RootCauses([*found, Found("enc-strict-json", 1)], 2)
    assert both.cause_of("ext-logprobs-finite", 2) == "enc-strict-json"


def test_a_finding_in_another_frame_is_its_own() -> None:
    causes = RootCauses([Found("fin-exactly-once", 4)], 5)
    assert CONSEQUENCES["fin-exactly-once"]["fin-last-of-choice"] is CauseScope.SAME_FRAME
    assert causes.cause_of("fin-last-of-choice", 4) == "fin-exactly-once"
    assert causes.cause_of("fin-last-of-choice", 5) is None
