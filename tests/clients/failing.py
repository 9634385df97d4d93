"""Servers that fail in a known way, as cases: `welldone mock --list` names them, and some that matter to clients."""

from tests.clients.cases import Case, Choice
from welldone.mock.faults import ALL_FAULTS, MockFault
from welldone.mock.script import HELLO_REPLY, MockChunk, MockReply

SERVER = "`welldone mock --fault`"
SAYS_HELLO = Choice("Hello", [], "stop")
# All is said, if in an odd way, and must be heard. With [DONE] a server says that it is not cut off.
SAID = {"no-done", "no-finish", "close-after", "wrong-type", "too-short", "no-length", "http-1.0", "whole"}
LEFT_OUT = {
    *("hang", "hang-first", "slow", "endless", "long-line"),  # they take their time; other tests look at them
    *("limited", "unavailable"),  # some clients wait as long as they are told to; those without Retry-After are here
    *("gzip", "gzip-bomb"),  # a client unpacks what it gets; the gateway says that it has not asked for it
    *("redirect-301", "redirect-302", "redirect-308"),  # one of them is enough
    "stream",  # here with usage: the command `llm` reads no whole answer without
}
USAGE = 'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}\n\n'


def failing_cases() -> list[Case]:
    """One for each fault that ends by itself."""
    role, text, stop, done = HELLO_REPLY.pieces
    return [
        *(_case(fault) for fault in ALL_FAULTS if fault.name not in LEFT_OUT),
        Case(
            name="fault/quiet-end",
            row=(SERVER, "it stops after some words, as if they were all"),
            asks={"stream": True},
            reply=MockReply((role, text)),
            is_failure=True,
        ),
        Case(
            name="fault/stream",
            row=(SERVER, "a stream, also where a whole reply was asked for"),
            asks={},
            reply=MockReply((role, text, stop, MockChunk(USAGE), done)),
            choices=(SAYS_HELLO,),
            usage=[9, 1, 10],
        ),
    ]


def _case(fault: MockFault) -> Case:
    is_said = fault.name in SAID
    return Case(
        name=f"fault/{fault.name}",
        row=(SERVER, fault.description),
        asks={"stream": True},
        reply=fault.reply,
        choices=(SAYS_HELLO,) if is_said else (),
        is_failure=not is_said,
    )
