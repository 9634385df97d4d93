"""Variants of the mock server: any model name and a chosen text, one broken rule, or a fault."""

from collections.abc import Callable
from difflib import get_close_matches

from welldone.mock.faults import ALL_FAULTS, MockFault
from welldone.mock.reference.choices import MockChoice, tokenize
from welldone.mock.reference.schemas import MockChatRequest
from welldone.mock.reference.server import DEFAULT_TEXT, MockHandler, ReferenceServer
from welldone.mock.script import MockReply, MockScript
from welldone.mock.server import MockHttpRequest, MockServer
from welldone.mock.violations import violating_handler
from welldone.protocol.catalog import RULES

MODEL_NAME = "mock"
_CONTEXT_LENGTH = 131_072  # longer than the prompts of tests, with room for the longest answer
_GENERATION_PATHS = ("/completions", "/responses", "/messages")  # suffixes of the paths that answer a prompt
MODELS: dict[str, object] = {
    "object": "list",
    "data": [{"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "welldone"}],
}


class AnyModelServer(ReferenceServer):
    """The reference server, but with any model name, and optionally one fixed text for all answers."""

    def __init__(self, text: str | None = None, gap_s: float = 0.0) -> None:
        super().__init__(text=text or DEFAULT_TEXT, gap_s=gap_s, models=(MODEL_NAME,), context=_CONTEXT_LENGTH)
        self._fixed_text = text

    def resolve_model(self, name: str | None) -> str:
        return name or MODEL_NAME

    def choose_answer(self, request: MockChatRequest) -> MockChoice:
        if self._fixed_text is None:
            return super().choose_answer(request)
        return MockChoice(reasoning=self.reasoning_tokens(request), text=tokenize(self._fixed_text))

    def text_for(self, prompt: str) -> str:
        return super().text_for(prompt) if self._fixed_text is None else self._fixed_text


def fault_server(fault: MockFault, speed: float = 1.0) -> MockServer:
    """Make a server with a fault. A fault of the connection applies to answers, but not to errors and model lists."""
    if fault.apply is None:
        return MockServer(MockScript(posts=(fault.reply,), models=MODELS, speed=speed))
    handler = _with_fault(fault.apply, AnyModelServer())
    return MockServer(MockScript(speed=speed), handler, handles_all=True)


def make_mock_server(
    *, rule: str | None = None, fault: str | None = None, text: str | None = None, gap_s: float = 0.0
) -> MockServer:
    """Make a server whose answers are correct, break one rule, or have a fault.

    Raises:
        ValueError: there is no such rule or fault, no server can break the rule, or the parameters exclude each other.
    """
    if (rule is not None or fault is not None) and (text is not None or gap_s or None not in (rule, fault)):
        raise ValueError("give one of rule, fault and text: an answer with a broken rule or a fault has its own text")
    if fault is not None:
        faults = {one.name: one for one in ALL_FAULTS}
        if fault not in faults:
            raise ValueError(_unknown("fault", fault, list(faults), "welldone mock --list shows them"))
        return fault_server(faults[fault])
    if rule is None:
        return MockServer(MockScript(), AnyModelServer(text, gap_s).answer, handles_all=True)
    if rule not in RULES:
        raise ValueError(_unknown("rule", rule, list(RULES), "welldone rules lists them"))
    try:
        handler = violating_handler(rule, AnyModelServer())
    except LookupError:
        raise ValueError(f"no answer of a server can break the rule {rule}") from None
    return MockServer(MockScript(), handler, handles_all=True)


def _with_fault(spoil: Callable[[MockReply], MockReply], ideal: ReferenceServer) -> MockHandler:
    """Return a handler that applies a fault to answers, but not to errors and model lists."""

    def answer(seen: MockHttpRequest) -> MockReply:
        reply = ideal.answer(seen)
        is_answer = (
            seen.method == "POST" and reply.status == 200 and seen.path.partition("?")[0].endswith(_GENERATION_PATHS)
        )
        return spoil(reply) if is_answer else reply

    return answer


def _unknown(kind: str, name: str, names: list[str], hint: str) -> str:
    close = get_close_matches(name, names, 1)
    return f"there is no {kind} {name!r}; " + (f"did you mean {close[0]!r}?" if close else hint)
