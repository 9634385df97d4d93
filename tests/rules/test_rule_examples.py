"""Code blocks of rule pages, read as traces."""

from tests.table import table
from welldone.rules.rule_pages import RuleExample, read_examples
from welldone.rules.trace import Trace


def _only(page: str, rule: str = "delta-role-once") -> RuleExample:
    (example,) = read_examples(rule, page)
    return example


def test_each_block_of_a_page_is_a_numbered_example() -> None:
    page = "# A\n\n```sse wrong\ndata: 1\n\n```\n\nBetween.\n\n```json right\n{}\n```\n"
    assert read_examples("delta-role-once", page) == [
        RuleExample("delta-role-once", 1, False, Trace(body=b"data: 1\n\n")),
        RuleExample("delta-role-once", 2, True, Trace(body=b"{}\n")),
    ]


def test_the_name_of_an_example_has_rule_and_number() -> None:
    assert _only("```sse right\n```\n").name == "delta-role-once block 1"


def test_dialogues_and_other_blocks_are_not_examples() -> None:
    assert read_examples("live-stop-not-leaked", "```text wrong\n> {}\n```\n\n```toml\na = 1\n```\n") == []


def test_an_http_block_has_status_and_headers() -> None:
    trace = _only("```http wrong\nHTTP/1.1 429 Too Many Requests\nRetry-After: 2\n\n{}\n```\n").trace
    assert (trace.status, trace.headers, trace.body) == (429, (("Retry-After", "2"),), b"{}\n")


@table(
    ("rule", "words", "endpoint"),
    [
        ("delta-role-once", "", "chat"),
        ("cmpl-done", "", "completions"),
        ("sse-no-bom", "", "chat"),
        ("sse-no-bom", " completions", "completions"),
        ("sse-no-bom", " responses escaped", "responses"),
        ("sse-no-bom", " messages", "messages"),
        ("resp-usage", "", "responses"),
    ],
)
def test_a_block_can_override_the_endpoint_of_the_rule(rule: str, words: str, endpoint: str) -> None:
    assert _only(f"```sse wrong{words}\n```\n", rule).trace.endpoint == endpoint


def test_a_block_can_have_a_request() -> None:
    assert _only('```sse wrong request={"n": 2}\n```\n').trace.request == {"n": 2}


@table(
    ("written", "meant"),
    [
        (r"a\rb\nc\td\\e", b"a\rb\nc\td\\e"),
        (r"\xff\xC3", b"\xff\xc3"),
        (r"\u2028", "\u2028".encode()),
        ("one\\\ntwo", b"onetwo"),
        (r"\q", rb"\q"),
    ],
)
def test_escapes_are_decoded(written: str, meant: bytes) -> None:
    assert _only(f"```sse wrong escaped\n{written}\n```\n").trace.body == meant + b"\n"
    assert _only(f"```sse wrong\n{written}\n```\n").trace.body == written.encode() + b"\n"
