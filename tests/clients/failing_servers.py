"""Servers that fail in a known way, as test cases: those of `welldone mock --list`, and some others."""

from tests.clients.cases import Case, Choice
from welldone.mock.script import HELLO_REPLY, MockChunk, MockReply
from welldone.mock.variants import ALL_FAULTS, MockFault

SERVER = "`welldone mock --fault`"
HELLO_CHOICE = Choice("Hello", [], "stop")
# The answer is complete, so clients must return it; [DONE] shows that it is not truncated.
COMPLETE_ANSWERS = {"no-done", "no-finish", "close-after", "wrong-type", "too-short", "no-length", "http-1.0", "whole"}
EXCLUDED = {
    *("hang", "hang-first", "slow", "endless", "long-line"),  # slow; covered by other tests
    *("limited", "unavailable"),  # some clients wait for Retry-After; the variants without it are included
    *("gzip", "gzip-bomb"),  # clients decompress it; the gateway rejects an encoding that it did not request
    *("redirect-301", "redirect-302", "redirect-308"),  # one redirect is enough
    "stream",  # included below with usage, which the `llm` command requires
}
USAGE = 'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}\n\n'


def failing_cases() -> list[Case]:
    """Return one case per fault that ends without a timeout."""
    role, text, stop, done = HELLO_REPLY.pieces
    return [
        *(_case(fault) for fault in ALL_FAULTS if fault.name not in EXCLUDED),
        Case(
            name="fault/quiet-end",
            row=(SERVER, "the stream ends after some text, without finish_reason or [DONE]"),
            parameters={"stream": True},
            reply=MockReply((role, text)),
            is_failure=True,
        ),
        Case(
            name="fault/stream",
            row=(SERVER, "a stream, even if none was requested"),
            parameters={},
            reply=MockReply((role, text, stop, MockChunk(USAGE), done)),
            choices=(HELLO_CHOICE,),
            usage=[9, 1, 10],
        ),
    ]


def _case(fault: MockFault) -> Case:
    is_complete = fault.name in COMPLETE_ANSWERS
    return Case(
        name=f"fault/{fault.name}",
        row=(SERVER, fault.description),
        parameters={"stream": True},
        reply=fault.reply,
        choices=(HELLO_CHOICE,) if is_complete else (),
        is_failure=not is_complete,
    )
