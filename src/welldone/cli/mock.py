"""`welldone mock`: a server without a model, for those who write clients. It is right, or wrong in a known way."""

import argparse
import asyncio
import contextlib
import json
import re
from collections.abc import Callable

from welldone import __version__
from welldone.check.applicability import UNCOVERED
from welldone.cli import captures, ui
from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode, UsageError
from welldone.config.settings import did_you_mean
from welldone.mock import faults
from welldone.mock.reference.choices import MockChoice, repeat_to_length, tokenize
from welldone.mock.reference.schemas import MockChatRequest
from welldone.mock.reference.server import MockHandler, ReferenceServer
from welldone.mock.script import MockReply, MockScript, reply_from_trace
from welldone.mock.server import MockHttpRequest, MockServer
from welldone.mock.violations import round_robin, violating_handler
from welldone.protocol.catalog import RULES_BY_ID
from welldone.reporting import format_table

EXAMPLES = """
welldone mock
welldone mock --text "Once upon a time" --tokens 50 --gap 20ms
welldone mock --list
welldone mock --fault cut
welldone mock --break delta-role-once --break end-done-sent
welldone mock --trace recorded.json --speed 0
"""
_MODEL_NAME = "mock"
_DEFAULT_TEXT = "Hello! How can I help you today?"
_MAX_TOKENS = 4096  # an answer is made before it is sent: with 128 choices these are some hundred MB
_CONTEXT_LENGTH = 131_072  # no prompt that somebody writes for a test is longer, and the longest answer fits besides
_MAX_GAP_S = 60.0
_MAX_SPEED = 1000.0
_GENERATION_PATHS = ("/completions", "/responses", "/messages")  # where paths end that answer a prompt
_GAP_PATTERN = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(ms|s)")


class _CliMock(ReferenceServer):
    """The ideal server, for whoever writes a client: it knows every model, and may have one answer to everything."""

    def __init__(self, text: str | None, gap_s: float) -> None:
        super().__init__(text=text or _DEFAULT_TEXT, gap_s=gap_s, models=(_MODEL_NAME,), context=_CONTEXT_LENGTH)
        self._fixed_text = text

    def resolve_model(self, name: str | None) -> str:
        return name or _MODEL_NAME

    def choose_answer(self, request: MockChatRequest) -> MockChoice:
        if self._fixed_text is None:
            return super().choose_answer(request)
        return MockChoice(reasoning=self.reasoning_tokens(request), text=tokenize(self._fixed_text))

    def text_for(self, prompt: str) -> str:
        return super().text_for(prompt) if self._fixed_text is None else self._fixed_text


def run(arguments: list[str]) -> ExitCode:
    """Answer until told to stop."""
    options = _parser().parse(arguments)
    if options.list:
        _list_faults()
        return ExitCode.OK
    server, says = _make_server(options)
    with contextlib.suppress(KeyboardInterrupt):  # that is how it ends
        asyncio.run(_serve(server, options.host, options.port, says))
    return ExitCode.OK


def _parser() -> CommandParser:
    parser = CommandParser(
        "mock",
        "Answer requests for chats, completions, responses and messages without a model, for those who write clients:\n"
        "with a right answer, with a recorded one, with a fault, or against a rule. It listens on this machine\n"
        "only, unless --host says otherwise, and asks for no key.\n"
        'A right answer is one to what was asked: "Say: hello" is answered with hello, "Count to 50" with numbers,\n'
        "and a tool is called where the prompt speaks of it. Limits, stop strings, n, logprobs and JSON schemas\n"
        "are kept to, and a wrong request gets OpenAI's error, or Anthropic's. A model whose name ends in -thinking\n"
        "sends reasoning.\n"
        "GET /seen tells what was asked and whether the client stayed to the end, GET /counts how often.",
        EXAMPLES,
    )
    parser.add_argument(
        "--port", metavar="PORT", type=_parse_port, default=8000, help="port to listen on; 0: any that is free (8000)"
    )
    parser.add_argument(
        "--host", metavar="HOST", default="127.0.0.1", help="address to listen on; 0.0.0.0: all (127.0.0.1)"
    )
    parser.add_argument("--text", metavar="TEXT", help="what is answered to everything, whatever was asked")
    parser.add_argument("--tokens", metavar="N", type=_parse_tokens, help="that many tokens of it, over and over")
    parser.add_argument(
        "--gap", metavar="TIME", type=_parse_gap, help="the pause before each token, such as 20ms or 1.5s"
    )
    parser.add_argument("--fault", metavar="NAME", help="be wrong in this way, with a text of its own")
    parser.add_argument("--list", action="store_true", help="show the faults")
    parser.add_argument(
        "--break",
        dest="broken",
        metavar="RULE",
        action="append",
        help="be right but for this rule, where a request gives an occasion; welldone rules shows them "
        "(may be repeated: answers break them in turn)",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        action="append",
        help="a recorded trace (welldone serve --record); of several each is one answer, and the last one stays",
    )
    parser.add_argument(
        "--speed",
        metavar="X",
        type=_parse_speed,
        default=1.0,
        help="how much faster all pauses are; 0: there are none (1)",
    )
    return parser


def _parse_port(text: str) -> int:
    return _parse_integer(text, 0, 65_535)


def _parse_tokens(text: str) -> int:
    return _parse_integer(text, 1, _MAX_TOKENS)


def _parse_integer(text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
    return int(text)


def _parse_gap(text: str) -> float:
    found = _GAP_PATTERN.fullmatch(text)
    gap_s = -1.0 if found is None else float(found[1]) / (1000 if found[2] == "ms" else 1)
    if not 0 <= gap_s <= _MAX_GAP_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no time up to {_MAX_GAP_S:g} s, such as 20ms or 1.5s")
    return gap_s


def _parse_speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = -1.0
    if not 0 <= speed <= _MAX_SPEED:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to {_MAX_SPEED:g}")
    return speed


def _make_server(options: argparse.Namespace) -> tuple[MockServer, str]:
    """The server, and what it will say, in words."""
    _check_combination(options)
    models = {"object": "list", "data": [{"id": _MODEL_NAME, "object": "model", "created": 0, "owned_by": "welldone"}]}
    if options.trace:
        posts = tuple(reply_from_trace(*captures.read_record(name)) for name in options.trace)
        script = MockScript(posts=posts, models=models, speed=options.speed)
        return MockServer(script), f"what was recorded in {', '.join(map(ui.printable_name, options.trace))}"
    if options.fault is not None:
        fault = _find_fault(options.fault)
        if fault.apply is not None:
            spoiled = _with_fault(fault.apply, _CliMock(None, 0.0))
            return MockServer(
                MockScript(speed=options.speed), spoiled, handles_all=True
            ), f"a fault: {fault.description}"
        return MockServer(
            MockScript(posts=(fault.reply,), models=models, speed=options.speed)
        ), f"a fault: {fault.description}"
    if options.broken is not None:
        rules = [_check_rule(name) for name in options.broken]
        answer = round_robin([violating_handler(rule, _CliMock(None, 0.0)) for rule in rules])
        says = f"a right answer, but for {'the rule' if len(rules) == 1 else 'one of the rules'} {', '.join(rules)}"
        return MockServer(MockScript(speed=options.speed), answer, handles_all=True), says
    text = options.text
    if options.tokens is not None:
        text = repeat_to_length(_DEFAULT_TEXT if text is None else text, options.tokens)
    mock = _CliMock(text, options.gap or 0.0)
    return MockServer(MockScript(speed=options.speed), mock.answer, handles_all=True), "a right answer"


def _with_fault(spoil: Callable[[MockReply], MockReply], ideal: ReferenceServer) -> MockHandler:
    """The ideal server, whose answers, but not its errors and lists, are spoiled."""

    def answer(seen: MockHttpRequest) -> MockReply:
        reply = ideal.answer(seen)
        is_answer = (
            seen.method == "POST" and reply.status == 200 and seen.path.partition("?")[0].endswith(_GENERATION_PATHS)
        )
        return spoil(reply) if is_answer else reply

    return answer


def _check_combination(options: argparse.Namespace) -> None:
    """Raises `UsageError` where options do not go together."""
    if options.trace and options.fault is not None:
        raise UsageError("a trace is played as it was recorded, without a fault: leave out --trace or --fault")
    if options.broken is not None and (options.trace or options.fault is not None):
        raise UsageError("a rule is broken in answers that are else right: leave out --break, or --trace and --fault")
    has_text = (options.text, options.tokens, options.gap) != (None, None, None)
    kinds = {"a trace": options.trace, "a fault": options.fault, "a broken rule": options.broken}
    what = next((kind for kind, value in kinds.items() if value is not None), None)
    if has_text and what is not None:
        raise UsageError(f"{what} has a text of its own: leave out --text, --tokens and --gap")


def _check_rule(name: str) -> str:
    """A rule that can be broken."""
    if name in UNCOVERED:
        raise UsageError(f"{name} cannot be broken here: {UNCOVERED[name]}")
    if name not in RULES_BY_ID:
        raise UsageError(f"there is no rule {name!r}{did_you_mean(name, RULES_BY_ID)}; welldone rules lists them")
    return name


def _find_fault(name: str) -> faults.MockFault:
    by_name = {fault.name: fault for fault in faults.ALL_FAULTS}
    if name not in by_name:
        raise UsageError(f"there is no fault {name!r}{did_you_mean(name, by_name)}; welldone mock --list shows them")
    return by_name[name]


def _list_faults() -> None:
    for line in format_table([(fault.name, fault.description) for fault in faults.ALL_FAULTS], ui.terminal_width()):
        ui.print_line(line)


async def _serve(server: MockServer, host: str, port: int, behavior: str) -> None:
    try:
        await server.listen(host=host, port=port)
    except OSError as error:
        where = f"port {port}" if host == "127.0.0.1" else f"{ui.printable_name(host)} port {port}"
        message = f"cannot listen on {where}: {ui.error_text(error)}; choose another with --port"
        raise UsageError(message if host == "127.0.0.1" else f"{message} or --host") from None
    async with server:
        for line in _banner(_reachable_host(host), server.port, behavior):
            ui.print_line(line)
        ui.flush_output()
        await asyncio.Event().wait()


def _reachable_host(host: str) -> str:
    """An address under which clients on this machine reach what listens on `host`."""
    reachable = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{reachable}]" if ":" in reachable else reachable


def _banner(host: str, port: int, behavior: str) -> list[str]:
    url = f"http://{host}:{port}/v1"
    request = {"model": _MODEL_NAME, "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
    return [
        f"welldone {__version__} mocks a server on {url}",
        "",
        f"  curl -N {url}/chat/completions \\",
        "    -H 'Content-Type: application/json' \\",
        f"    -d '{json.dumps(request, separators=(',', ':'))}'",
        "",
        f"  says      {behavior}",
        "  end       Ctrl-C",
    ]
