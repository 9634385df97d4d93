"""`welldone mock`: a server without a model for client tests. Its answers are correct, or wrong in a chosen way.

Answer chat completions, completions, responses and messages without a model, to test clients: with a
correct answer, a recorded one, a fault, or a broken rule. It listens on this machine only, unless --host
is given, and requires no key.
Answers depend on the prompt: "Say: hello" is answered with hello, "Count to 50" with numbers, and a tool
is called if the prompt mentions it. Limits, stop strings, n, logprobs and JSON schemas are honoured, and an
invalid request gets the error of OpenAI or Anthropic. A model whose name ends in -thinking sends reasoning.
GET /seen lists the requests and whether the client read to the end; GET /counts returns their number.

examples:
  welldone mock
  welldone mock --text "Once upon a time" --tokens 50 --gap 20ms
  welldone mock --list
  welldone mock --fault cut
  welldone mock --break delta-role-once --break end-done-sent
  welldone mock --trace recorded.json --speed 0
"""

import argparse
import asyncio
import contextlib
import json
import re

from welldone import __version__
from welldone.check.applicability import UNCOVERED
from welldone.cli import captures, ui
from welldone.cli.option_types import integer_between, number_up_to
from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode, UsageError, cancel_on_sigterm
from welldone.config.settings import unknown_name, unknown_rule
from welldone.core.catalog import RULES
from welldone.mock.reference.choices import repeat_to_length
from welldone.mock.reference.server import DEFAULT_TEXT
from welldone.mock.script import MockScript, reply_from_trace
from welldone.mock.server import MockServer
from welldone.mock.variants import ALL_FAULTS, MODEL_NAME, MODELS, AnyModelServer, fault_server
from welldone.mock.violations import round_robin, violating_handler
from welldone.reporting import format_table

_MAX_TOKENS = 4096  # an answer is built before it is sent: with 128 choices this takes some hundred MB
_MAX_GAP_S = 60.0
_MAX_SPEED = 1000.0
_GAP_PATTERN = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(ms|s)")


def run(arguments: list[str]) -> ExitCode:
    """Answer until Ctrl-C or SIGTERM."""
    options = _parser().parse(arguments)
    if options.list:
        rows = [(fault.name, fault.description) for fault in ALL_FAULTS]
        ui.print_lines(format_table(rows, ui.terminal_width()))
        return ExitCode.OK
    server, behavior = _make_server(options)
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):  # the normal end
        asyncio.run(_serve(server, options.host, options.port, behavior))
    return ExitCode.OK


def _parser() -> CommandParser:
    parser = CommandParser("mock", __doc__)
    add = parser.option
    add("--port PORT", "port to listen on; 0: any free port (8000)", integer_between(0, 65_535), default=8000)
    add("--host HOST", "address to listen on; 0.0.0.0: all (127.0.0.1)", default="127.0.0.1")
    add("--text TEXT", "answer every request with this text")
    add("--tokens N", "length of the answer; the text is repeated", integer_between(1, _MAX_TOKENS))
    add("--gap TIME", "pause before each token, such as 20ms or 1.5s", _parse_gap)
    add("--fault NAME", "answer with this fault, with a text of its own")
    add("--list", "list the faults")
    add(
        "--break RULE...",
        "break this rule in answers that are otherwise correct, if the request allows it; see welldone rules "
        "(may be repeated: answers break them in turn)",
        dest="broken",
    )
    traces = "replay a recorded trace (welldone serve --record); several are replayed in turn, the last is repeated"
    add("--trace FILE...", traces)
    parse_speed = number_up_to(_MAX_SPEED, allows_zero=True)
    add("--speed X", "factor by which pauses are shortened; 0: no pauses (1)", parse_speed, default=1.0)
    return parser


def _parse_gap(text: str) -> float:
    match = _GAP_PATTERN.fullmatch(text)
    gap_s = -1.0 if match is None else float(match[1]) / (1000 if match[2] == "ms" else 1)
    if not 0 <= gap_s <= _MAX_GAP_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time up to {_MAX_GAP_S:g} s, such as 20ms or 1.5s")
    return gap_s


def _make_server(options: argparse.Namespace) -> tuple[MockServer, str]:
    """Return the server, and a description of its answers."""
    _check_combination(options)
    if options.trace:
        posts = tuple(reply_from_trace(*captures.read_trace_file(name)) for name in options.trace)
        script = MockScript(posts=posts, models=MODELS, speed=options.speed)
        return MockServer(script), f"replays {', '.join(map(ui.printable_name, options.trace))}"
    behavior = "correct answers"
    if options.fault is not None:
        fault = next((fault for fault in ALL_FAULTS if fault.name == options.fault), None)
        if fault is None:
            names = [fault.name for fault in ALL_FAULTS]
            raise UsageError(unknown_name("fault", options.fault, names, "welldone mock --list shows them"))
        behavior = f"a fault: {fault.description}"
        return fault_server(fault, options.speed), behavior
    if options.broken:
        rules = options.broken
        for name in rules:
            if name in UNCOVERED:
                raise UsageError(f"{name} cannot be broken here: {UNCOVERED[name]}")
            if name not in RULES:
                raise UsageError(unknown_rule(name, RULES))
        handler = round_robin([violating_handler(rule, AnyModelServer()) for rule in rules])
        behavior += f" that break {'the rule' if len(rules) == 1 else 'one of the rules'} {', '.join(rules)}"
    else:
        text = options.text
        if options.tokens is not None:
            text = repeat_to_length(DEFAULT_TEXT if text is None else text, options.tokens)
        handler = AnyModelServer(text, options.gap or 0.0).answer
    return MockServer(MockScript(speed=options.speed), handler, handles_all=True), behavior


def _check_combination(options: argparse.Namespace) -> None:
    """Raise `UsageError` for options that exclude each other."""
    if options.trace and options.fault is not None:
        raise UsageError("--trace and --fault exclude each other: a trace is replayed as it was recorded")
    if options.broken and (options.trace or options.fault is not None):
        raise UsageError(
            "--break excludes --trace and --fault: the rule is broken in answers that are otherwise correct"
        )
    has_text = (options.text, options.tokens, options.gap) != (None, None, None)
    sources = {"a trace": options.trace, "a fault": options.fault, "a broken rule": options.broken}
    source = next((name for name, value in sources.items() if value), None)
    if has_text and source is not None:
        raise UsageError(f"{source} has a text of its own: omit --text, --tokens and --gap")


async def _serve(server: MockServer, host: str, port: int, behavior: str) -> None:
    cancel_on_sigterm()
    try:
        await server.listen(host=host, port=port)
    except OSError as error:
        address = f"port {port}" if host == "127.0.0.1" else f"{ui.printable_name(host)} port {port}"
        message = f"cannot listen on {address}: {ui.error_text(error)}; choose another with --port"
        raise UsageError(message if host == "127.0.0.1" else f"{message} or --host") from None
    async with server:
        ui.print_lines(_banner(ui.server_url(host, server.port), behavior))
        ui.flush_output()
        await asyncio.Event().wait()


def _banner(server_url: str, behavior: str) -> list[str]:
    url = f"{server_url}/v1"
    request = {"model": MODEL_NAME, "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
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
