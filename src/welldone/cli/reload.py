"""`welldone reload`: let a running server read its configuration again.

Let a running server read its configuration file again: upstreams, routes, models, keys and limits change,
and running streams go on. A file with an error changes nothing. kill -HUP does the same without a report.

The server and an admin key are those of the settings, unless --url and --api-key name others.

examples:
  welldone reload
  welldone reload --url http://127.0.0.1:8000 --api-key env:MY_KEY
"""

import asyncio

import msgspec

from welldone.cli import ui
from welldone.cli.option_types import add_running_server_options
from welldone.cli.options import CommandParser
from welldone.cli.running_server import RunningServerError, ask_server, error_field, find_running_server
from welldone.cli.ui import ExitCode
from welldone.http.recording_client import RecordedResponse
from welldone.http.redaction import API_KEY_VARIABLE
from welldone.server.reload import ReloadResult

_PATH = "/admin/reload"
_TIMEOUT_S = 60.0  # the metadata of many large models on a slow disk; the workers have ten seconds


def run(arguments: list[str]) -> ExitCode:
    """Send the request, and print what has changed."""
    options = _parser().parse(arguments)
    url, address = find_running_server(options.url, options.api_key, options.config, options.ca_file)
    try:
        reply = asyncio.run(ask_server(url, address, "POST", _PATH, timeout_s=_TIMEOUT_S))
    except RunningServerError as error:
        ui.print_note(str(error))
        return ExitCode.UNREACHABLE
    if reply.status == 200:
        result = msgspec.json.decode(reply.body, type=ReloadResult)
        for text in result.warnings:
            ui.print_note(f"warning: {text}")
        file = "" if result.file is None else f" ({result.file})"
        ui.print_line(f"the configuration is {'reloaded' if result.outcome == 'applied' else 'unchanged'}{file}")
        ui.print_lines(f"  {line}" for line in result.changes)
        return ExitCode.OK
    ui.print_note(_problem(url, reply))
    return ExitCode.FAILED if reply.status == 409 else ExitCode.UNREACHABLE


def _problem(url: str, reply: RecordedResponse) -> str:
    if reply.status in (401, 403):
        return f"the server at {url} requires an admin key: --api-key KEY, or {API_KEY_VARIABLE}"
    message = error_field(reply.body, "message")
    if message and reply.status != 404:
        return ui.printable_name(message)
    return f"the server at {url} cannot reload its configuration (status {reply.status}): is it welldone serve?"


def _parser() -> CommandParser:
    parser = CommandParser("reload", __doc__)
    parser.option("--url URL", "URL of the server (default: from the settings)")
    add_running_server_options(parser)
    return parser
