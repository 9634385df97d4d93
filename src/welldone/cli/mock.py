"""`welldone mock`: a server without a model, for those who write clients. It is right, or wrong in a known way."""

import argparse
import asyncio
import contextlib
import json
import re
from collections.abc import Callable

from welldone import __version__
from welldone.check.reach import OUT_OF_REACH
from welldone.cli import captures, show
from welldone.cli.exits import Exit, UsageError
from welldone.cli.options import Parser, nearest
from welldone.drawing.columns import table
from welldone.engines import mischief
from welldone.engines.flaws import flawed, in_turn
from welldone.engines.ideal import Ideal
from welldone.engines.ideal.requests import Chat
from welldone.engines.ideal.said import Said
from welldone.engines.ideal.server import Answerer
from welldone.engines.ideal.tokens import over_and_over, tokens_of
from welldone.engines.scripted import Scripted, Seen
from welldone.engines.scripts import Reply, Script, replay
from welldone.wire.faults.catalogue import BY_ID

EXAMPLES = """
welldone mock
welldone mock --text "Once upon a time" --tokens 50 --gap 20ms
welldone mock --list
welldone mock --fault cut
welldone mock --break delta-role-once --break end-done-sent
welldone mock --trace recorded.json --speed 0
"""
_NAME = "mock"
_TEXT = "Hello! How can I help you today?"
_TOKENS_LIMIT = 4096  # an answer is made before it is sent: with 128 choices these are some hundred MB
_CONTEXT = 131_072  # no prompt that somebody writes for a test is longer, and the longest answer fits besides
_GAP_LIMIT_S = 60.0
_SPEED_LIMIT = 1000.0
_ANSWERS = ("/completions", "/responses", "/messages")  # where paths end that answer a prompt
_GAP = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(ms|s)")


class _Mock(Ideal):
    """The ideal server, for whoever writes a client: it knows every model, and may have one answer to everything."""

    def __init__(self, text: str | None, gap_s: float) -> None:
        super().__init__(text=text or _TEXT, gap_s=gap_s, models=(_NAME,), context=_CONTEXT)
        self._only = text

    def known(self, name: str | None) -> str:
        return name or _NAME

    def decide(self, request: Chat) -> Said:
        if self._only is None:
            return super().decide(request)
        return Said(reasoning=self.think(request), text=tokens_of(self._only))

    def text_for(self, prompt: str) -> str:
        return super().text_for(prompt) if self._only is None else self._only


def run(arguments: list[str]) -> Exit:
    """Answer until told to stop."""
    options = _parser().read(arguments)
    if options.list:
        _show_faults()
        return Exit.RIGHT
    server, says = _server(options)
    with contextlib.suppress(KeyboardInterrupt):  # that is how it ends
        asyncio.run(_serve(server, options.host, options.port, says))
    return Exit.RIGHT


def _parser() -> Parser:
    parser = Parser(
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
        "--port", metavar="PORT", type=_port, default=8000, help="port to listen on; 0: any that is free (8000)"
    )
    parser.add_argument(
        "--host", metavar="HOST", default="127.0.0.1", help="address to listen on; 0.0.0.0: all (127.0.0.1)"
    )
    parser.add_argument("--text", metavar="TEXT", help="what is answered to everything, whatever was asked")
    parser.add_argument("--tokens", metavar="N", type=_tokens, help="that many tokens of it, over and over")
    parser.add_argument("--gap", metavar="TIME", type=_gap, help="the pause before each token, such as 20ms or 1.5s")
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
        "--speed", metavar="X", type=_speed, default=1.0, help="how much faster all pauses are; 0: there are none (1)"
    )
    return parser


def _port(text: str) -> int:
    return _whole(text, 0, 65_535)


def _tokens(text: str) -> int:
    return _whole(text, 1, _TOKENS_LIMIT)


def _whole(text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
    return int(text)


def _gap(text: str) -> float:
    found = _GAP.fullmatch(text)
    gap_s = -1.0 if found is None else float(found[1]) / (1000 if found[2] == "ms" else 1)
    if not 0 <= gap_s <= _GAP_LIMIT_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no time up to {_GAP_LIMIT_S:g} s, such as 20ms or 1.5s")
    return gap_s


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = -1.0
    if not 0 <= speed <= _SPEED_LIMIT:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to {_SPEED_LIMIT:g}")
    return speed


def _server(options: argparse.Namespace) -> tuple[Scripted, str]:
    """The server, and what it will say, in words."""
    _check_together(options)
    models = {"object": "list", "data": [{"id": _NAME, "object": "model", "created": 0, "owned_by": "welldone"}]}
    if options.trace:
        posts = tuple(replay(*captures.read_record(name)) for name in options.trace)
        script = Script(posts=posts, models=models, speed=options.speed)
        return Scripted(script), f"what was recorded in {', '.join(map(show.name, options.trace))}"
    if options.fault is not None:
        fault = _fault(options.fault)
        if fault.spoil is not None:
            spoiled = _spoiled(fault.spoil, _Mock(None, 0.0))
            return Scripted(Script(speed=options.speed), spoiled, for_all=True), f"a fault: {fault.says}"
        return Scripted(Script(posts=(fault.reply,), models=models, speed=options.speed)), f"a fault: {fault.says}"
    if options.broken is not None:
        rules = [_rule(name) for name in options.broken]
        answer = in_turn([flawed(rule, _Mock(None, 0.0)) for rule in rules])
        says = f"a right answer, but for {'the rule' if len(rules) == 1 else 'one of the rules'} {', '.join(rules)}"
        return Scripted(Script(speed=options.speed), answer, for_all=True), says
    text = options.text
    if options.tokens is not None:
        text = over_and_over(_TEXT if text is None else text, options.tokens)
    mock = _Mock(text, options.gap or 0.0)
    return Scripted(Script(speed=options.speed), mock.answer, for_all=True), "a right answer"


def _spoiled(spoil: Callable[[Reply], Reply], ideal: Ideal) -> Answerer:
    """The ideal server, whose answers, but not its errors and lists, are spoiled."""

    def answer(seen: Seen) -> Reply:
        reply = ideal.answer(seen)
        is_answer = seen.method == "POST" and reply.status == 200 and seen.path.partition("?")[0].endswith(_ANSWERS)
        return spoil(reply) if is_answer else reply

    return answer


def _check_together(options: argparse.Namespace) -> None:
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


def _rule(name: str) -> str:
    """A rule that can be broken."""
    if name in OUT_OF_REACH:
        raise UsageError(f"{name} cannot be broken here: {OUT_OF_REACH[name]}")
    if name not in BY_ID:
        raise UsageError(f"there is no rule {name!r}{nearest(name, BY_ID)}; welldone rules lists them")
    return name


def _fault(name: str) -> mischief.Fault:
    by_name = {fault.name: fault for fault in mischief.ALL}
    if name not in by_name:
        raise UsageError(f"there is no fault {name!r}{nearest(name, by_name)}; welldone mock --list shows them")
    return by_name[name]


def _show_faults() -> None:
    for line in table([(fault.name, fault.says) for fault in mischief.ALL], show.width()):
        show.line(line)


async def _serve(server: Scripted, host: str, port: int, says: str) -> None:
    try:
        await server.listen(host=host, port=port)
    except OSError as error:
        where = f"port {port}" if host == "127.0.0.1" else f"{show.name(host)} port {port}"
        message = f"cannot listen on {where}: {show.why(error)}; choose another with --port"
        raise UsageError(message if host == "127.0.0.1" else f"{message} or --host") from None
    async with server:
        for line in _banner(_shown(host), server.port, says):
            show.line(line)
        show.flush()
        await asyncio.Event().wait()


def _shown(host: str) -> str:
    """An address under which clients on this machine reach what listens on `host`."""
    reachable = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{reachable}]" if ":" in reachable else reachable


def _banner(host: str, port: int, says: str) -> list[str]:
    url = f"http://{host}:{port}/v1"
    request = {"model": _NAME, "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
    return [
        f"welldone {__version__} mocks a server on {url}",
        "",
        f"  curl -N {url}/chat/completions \\",
        "    -H 'Content-Type: application/json' \\",
        f"    -d '{json.dumps(request, separators=(',', ':'))}'",
        "",
        f"  says      {says}",
        "  end       Ctrl-C",
    ]
