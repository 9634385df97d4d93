"""`welldone mock`: a server without a model for client tests. Its answers are correct, or wrong in a chosen way."""

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
from welldone.protocol.catalog import RULES
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
_MAX_TOKENS = 4096  # an answer is built before it is sent: with 128 choices this takes some hundred MB
_CONTEXT_LENGTH = 131_072  # longer than the prompts of tests, with room for the longest answer
_MAX_GAP_S = 60.0
_MAX_SPEED = 1000.0
_GENERATION_PATHS = ("/completions", "/responses", "/messages")  # suffixes of the paths that answer a prompt
_GAP_PATTERN = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(ms|s)")


class _CliMock(ReferenceServer):
    """The reference server, but with any model name, and optionally one fixed text for all answers."""

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
    """Answer until interrupted."""
    options = _parser().parse(arguments)
    if options.list:
        _list_faults()
        return ExitCode.OK
    server, behavior = _make_server(options)
    with contextlib.suppress(KeyboardInterrupt):  # the normal end
        asyncio.run(_serve(server, options.host, options.port, behavior))
    return ExitCode.OK


def _parser() -> CommandParser:
    parser = CommandParser(
        "mock",
        "Answer chat completions, completions, responses and messages without a model, to test clients: with a\n"
        "correct answer, a recorded one, a fault, or a broken rule. It listens on this machine only, unless --host\n"
        "is given, and requires no key.\n"
        'Answers depend on the prompt: "Say: hello" is answered with hello, "Count to 50" with numbers, and a tool\n'
        "is called if the prompt mentions it. Limits, stop strings, n, logprobs and JSON schemas are honoured, and an\n"
        "invalid request gets the error of OpenAI or Anthropic. A model whose name ends in -thinking sends reasoning.\n"
        "GET /seen lists the requests and whether the client read to the end; GET /counts returns their number.",
        EXAMPLES,
    )
    parser.add_argument(
        "--port", metavar="PORT", type=_parse_port, default=8000, help="port to listen on; 0: any free port (8000)"
    )
    parser.add_argument(
        "--host", metavar="HOST", default="127.0.0.1", help="address to listen on; 0.0.0.0: all (127.0.0.1)"
    )
    parser.add_argument("--text", metavar="TEXT", help="answer every request with this text")
    parser.add_argument("--tokens", metavar="N", type=_parse_tokens, help="length of the answer; the text is repeated")
    parser.add_argument("--gap", metavar="TIME", type=_parse_gap, help="pause before each token, such as 20ms or 1.5s")
    parser.add_argument("--fault", metavar="NAME", help="answer with this fault, with a text of its own")
    parser.add_argument("--list", action="store_true", help="list the faults")
    parser.add_argument(
        "--break",
        dest="broken",
        metavar="RULE",
        action="append",
        help="break this rule in answers that are otherwise correct, if the request allows it; see welldone rules "
        "(may be repeated: answers break them in turn)",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        action="append",
        help="replay a recorded trace (welldone serve --record); several are replayed in turn, the last is repeated",
    )
    parser.add_argument(
        "--speed",
        metavar="X",
        type=_parse_speed,
        default=1.0,
        help="factor by which pauses are shortened; 0: no pauses (1)",
    )
    return parser


def _parse_port(text: str) -> int:
    return _parse_integer(text, 0, 65_535)


def _parse_tokens(text: str) -> int:
    return _parse_integer(text, 1, _MAX_TOKENS)


def _parse_integer(text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
    return int(text)


def _parse_gap(text: str) -> float:
    match = _GAP_PATTERN.fullmatch(text)
    gap_s = -1.0 if match is None else float(match[1]) / (1000 if match[2] == "ms" else 1)
    if not 0 <= gap_s <= _MAX_GAP_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time up to {_MAX_GAP_S:g} s, such as 20ms or 1.5s")
    return gap_s


def _parse_speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = -1.0
    if not 0 <= speed <= _MAX_SPEED:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {_MAX_SPEED:g}")
    return speed


def _make_server(options: argparse.Namespace) -> tuple[MockServer, str]:
    """Return the server, and a description of its answers."""
    _check_combination(options)
    models = {"object": "list", "data": [{"id": _MODEL_NAME, "object": "model", "created": 0, "owned_by": "welldone"}]}
    if options.trace:
        posts = tuple(reply_from_trace(*captures.read_trace_file(name)) for name in options.trace)
        script = MockScript(posts=posts, models=models, speed=options.speed)
        return MockServer(script), f"replays {', '.join(map(ui.printable_name, options.trace))}"
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
        named = f"{'the rule' if len(rules) == 1 else 'one of the rules'} {', '.join(rules)}"
        behavior = f"correct answers that break {named}"
        return MockServer(MockScript(speed=options.speed), answer, handles_all=True), behavior
    text = options.text
    if options.tokens is not None:
        text = repeat_to_length(_DEFAULT_TEXT if text is None else text, options.tokens)
    mock = _CliMock(text, options.gap or 0.0)
    return MockServer(MockScript(speed=options.speed), mock.answer, handles_all=True), "correct answers"


def _with_fault(spoil: Callable[[MockReply], MockReply], ideal: ReferenceServer) -> MockHandler:
    """Return a handler that applies a fault to answers, but not to errors and model lists."""

    def answer(seen: MockHttpRequest) -> MockReply:
        reply = ideal.answer(seen)
        is_answer = (
            seen.method == "POST" and reply.status == 200 and seen.path.partition("?")[0].endswith(_GENERATION_PATHS)
        )
        return spoil(reply) if is_answer else reply

    return answer


def _check_combination(options: argparse.Namespace) -> None:
    """Raise `UsageError` for options that exclude each other."""
    if options.trace and options.fault is not None:
        raise UsageError("--trace and --fault exclude each other: a trace is replayed as it was recorded")
    if options.broken is not None and (options.trace or options.fault is not None):
        raise UsageError(
            "--break excludes --trace and --fault: the rule is broken in answers that are otherwise correct"
        )
    has_text = (options.text, options.tokens, options.gap) != (None, None, None)
    kinds = {"a trace": options.trace, "a fault": options.fault, "a broken rule": options.broken}
    given = next((kind for kind, value in kinds.items() if value is not None), None)
    if has_text and given is not None:
        raise UsageError(f"{given} has a text of its own: omit --text, --tokens and --gap")


def _check_rule(name: str) -> str:
    if name in UNCOVERED:
        raise UsageError(f"{name} cannot be broken here: {UNCOVERED[name]}")
    if name not in RULES:
        raise UsageError(f"there is no rule {name!r}{did_you_mean(name, RULES)}; welldone rules lists them")
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
        address = f"port {port}" if host == "127.0.0.1" else f"{ui.printable_name(host)} port {port}"
        message = f"cannot listen on {address}: {ui.error_text(error)}; choose another with --port"
        raise UsageError(message if host == "127.0.0.1" else f"{message} or --host") from None
    async with server:
        for line in _banner(_reachable_host(host), server.port, behavior):
            ui.print_line(line)
        ui.flush_output()
        await asyncio.Event().wait()


def _reachable_host(host: str) -> str:
    """Return an address at which clients on this machine reach a server that listens on `host`."""
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
        f"  answers   {behavior}",
        "  stop      Ctrl-C",
    ]
