"""Writes the documents that are made from the code: rule pages' rows and their index, the protocol, the commands,
the settings, the schema of a report, the OpenAPI document.

With --check nothing is written: it fails if a document is not what it would be.
"""

import argparse
import contextlib
import io
import json
import os
import sys
from pathlib import Path

from welldone.bench.reports import data as bench_data
from welldone.check.reports import machine
from welldone.cli import serve
from welldone.cli.main import COMMANDS, run
from welldone.cli.serve import IGNORED_FLAGS, REFUSED_FLAGS, LlamaServerFlag
from welldone.cli.ui import EXIT_CODE_MEANINGS
from welldone.config.settings import SettingField
from welldone.protocol import finish_reasons, state
from welldone.protocol.catalog import ALL_RULES
from welldone.protocol.catalog.rule import Detection, Rule, Severity
from welldone.protocol.state import ChoiceTransitions
from welldone.server.api.openapi import document as openapi
from welldone.server.config import ALL_FIELDS
from welldone.server.config_file import (
    DEFAULT_FIELDS,
    ENGINE_FIELDS,
    FRONT_FIELDS,
    KEY_FIELDS,
    LIMITS_FIELDS,
    MODEL_FIELDS,
    SCALE_FIELDS,
    UPSTREAM_FIELDS,
)
from welldone.server.requests import anthropic, responses
from welldone.server.requests.fields import GENERATION_FIELDS, FieldHandling

import capacity  # isort: skip  # a neighbour: a script's own folder is on the path
import server_page  # isort: skip

DOCS = Path(__file__).parent.parent / "docs"
ROW, END_OF_ROW = "<!-- row -->", "<!-- /row -->"
REASONS, END_OF_REASONS = "<!-- reasons -->\n", "<!-- /reasons -->"
FAMILIES = {
    "http": "HTTP transport",
    "sse": "SSE framing",
    "enc": "Encoding and JSON",
    "end": "The end of a stream",
    "env": "The chunk envelope",
    "delta": "Role and content deltas",
    "fin": "finish_reason",
    "use": "Usage",
    "tool": "Tool calls",
    "ext": "Reasoning, refusal, logprobs and extras",
    "err": "Errors",
    "n": "Several choices",
    "cmpl": "/v1/completions",
    "resp": "/v1/responses",
    "msg": "/v1/messages",
    "ns": "Replies that are not streamed",
    "live": "Silence, stop strings, clients that leave",
    "req": "What requests may hold",
}


def main() -> int:
    """Write the documents, or say which are stale."""
    parser = argparse.ArgumentParser(description="Writes the generated documents anew.")
    parser.add_argument("--check", action="store_true", help="only say which are stale")
    is_check = parser.parse_args().check
    documents = _documents()
    stale = [path for path, text in documents.items() if not path.exists() or path.read_text("utf-8") != text]
    if is_check:
        for path in stale:
            print(f"{path.relative_to(DOCS.parent)} is stale: run make docs")
        return 1 if stale else 0
    for path in stale:
        path.write_text(documents[path], "utf-8")
        print(f"wrote {path.relative_to(DOCS.parent)}")
    return 0


def _documents() -> dict[Path, str]:
    documents = {DOCS / "rules" / f"{fault.id}.md": _page(fault) for fault in ALL_RULES}
    documents[DOCS / "rules" / "README.md"] = _index()
    documents[DOCS / "protocol.md"] = _protocol()
    documents[DOCS / "cli.md"] = _commands()
    documents[DOCS / "settings.md"] = _settings()
    documents[DOCS / "requests.md"] = _requests()
    documents[DOCS / "servers.md"] = server_page.draw(server_page.stored(DOCS / "servers"))
    documents[DOCS / "scaling.md"] = capacity.draw((DOCS / "scaling.md").read_text("utf-8"))
    documents[DOCS / "openapi.json"] = json.dumps(openapi.full_openapi_document(), indent=2) + "\n"
    documents[DOCS / "bench-report.schema.json"] = json.dumps(bench_data.report_schema(), indent=2) + "\n"
    documents[DOCS / "check-report.schema.json"] = json.dumps(machine.report_schema(), indent=2) + "\n"
    return documents


def _requests() -> str:
    lines = [
        "# The fields of a request",
        "",
        "What becomes of each field of a request to `/v1/chat/completions` or `/v1/completions`. A field that is not",
        "here is dropped without a word. A value that is wrong is a 400 that names the field and the limit.",
        "The table is that of `src/welldone/server/requests/fields.py`.",
    ]
    for use in FieldHandling:
        lines += ["", f"## {_title(use)}", "", "| field | where | what it may be |", "|---|---|---|"]
        lines += [
            f"| `{row.name}` | {row.endpoint or 'both'} | {_cell(row.note)} |"
            for row in GENERATION_FIELDS
            if row.handling is use
        ]
    for path, rows, rest in (
        ("/v1/responses", responses.RESPONSES_FIELDS, "Any other field is read as one of a chat."),
        ("/v1/messages", anthropic.ANTHROPIC_FIELDS, "Any other field is dropped without a word, as in a chat."),
    ):
        lines += ["", f"## `{path}`", "", f"Requests become chats. {rest}", "", "| field | | |", "|---|---|---|"]
        lines += [f"| `{row.name}` | {row.handling.value.partition(':')[0]} | {_cell(row.note)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _title(use: FieldHandling) -> str:
    return use.value[0].upper() + use.value[1:]


def _page(fault: Rule) -> str:
    page = (DOCS / "rules" / f"{fault.id}.md").read_text("utf-8")
    before, _, rest = page.partition(ROW)
    _, _, after = rest.partition(END_OF_ROW)
    if REASONS in after:
        text, _, rest = after.partition(REASONS)
        after = text + REASONS + _reasons() + END_OF_REASONS + rest.partition(END_OF_REASONS)[2]
    return before + ROW + "\n" + _row(fault) + END_OF_ROW + after


def _reasons() -> str:
    """The finish reasons of each provider; the source of each is in a list below the table."""
    lines = [
        "| provider | " + " | ".join(finish_reasons.OUTCOMES) + " |",
        "|---" * (1 + len(finish_reasons.OUTCOMES)) + "|",
    ]
    sources = ["", "Sources:", ""]
    for provider in finish_reasons.PROVIDERS:
        cells = [" ".join(f"`{word}`" for word in getattr(provider, outcome)) for outcome in finish_reasons.OUTCOMES]
        lines.append(f"| {provider.name} | {' | '.join(cells)} |")
        sources.append(f"- {provider.name}: {provider.source}")
    return "\n".join(lines + sources) + "\n"


def _row(fault: Rule) -> str:
    hurts = "".join(f"- {who}\n" for who in fault.affects) or "- nobody that we know of\n"
    return (
        f"{fault.summary}\n\n"
        f"| severity | endpoint | repair |\n|---|---|---|\n"
        f"| {fault.severity} | {', '.join(fault.endpoints)} | {fault.repairability}: {fault.repair} |\n\n"
        f"**Hurts.**\n\n{hurts}"
    )


def _index() -> str:
    probes = sum(fault.detection is Detection.PROBE for fault in ALL_RULES)
    counts = ", ".join(f"{sum(fault.severity is kind for fault in ALL_RULES)} {kind}" for kind in Severity)
    lines = [
        "# The rules of the stream",
        "",
        f"{len(ALL_RULES)} rules ({counts}). *breaks*: a real client fails, loses data or hangs. *tolerated*: usually",
        "survived. *style*: not what OpenAI does.",
        "",
        f"{len(ALL_RULES) - probes} are heard in one *reply*, which `welldone lint` judges; their pages have a wrong and",
        f"a right example, which are run as tests. {probes} take a *probe*: `welldone check` asks a server for it.",
    ]
    for family, title in FAMILIES.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| rule | severity | heard by | repair | a right stream |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| [{fault.id}]({fault.id}.md) | {fault.severity} | {fault.detection} | {fault.repairability} | {_cell(fault.summary)} |"
            for fault in ALL_RULES
            if fault.id.partition("-")[0] == family
        ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _protocol() -> str:
    return (
        "# What may follow what\n\n"
        "A writer takes events in these orders only; anything else is an `OutOfTurnError`. Repair makes such an\n"
        "order out of any events. The tables are those of `src/welldone/protocol/state.py`.\n\n"
        "## A choice of a chat\n\n" + _table(state.CHAT_TRANSITIONS) + "\n"
        "Choices open in the order of their index. A call's arguments come before the next call begins. An `Extra`\n"
        "that is not `alone`, and `Logprobs`, ride on the next chunk of their choice.\n\n"
        "## A choice of a completion\n\n" + _table(state.COMPLETIONS_TRANSITIONS) + "\n"
        "## The stream\n\n" + _stream_table() + "\n"
        "`Usage` comes when all choices have finished. After `Failure`, or when all have finished, the stream ends\n"
        "with `data: [DONE]`.\n"
    )


def _table(table: ChoiceTransitions) -> str:
    lines = ["| while a choice is | may come | and then it is |", "|---|---|---|"]
    for phase, moves in table.items():
        lines += [f"| {phase.value} | {event.__name__} | {after.value} |" for event, after in moves.items()]
        if not moves:
            lines.append(f"| {phase.value} | nothing | |")
    return "\n".join(lines) + "\n"


def _stream_table() -> str:
    lines = ["| while the stream is | may come | and then it is |", "|---|---|---|"]
    for stage, moves in state.STREAM_TRANSITIONS.items():
        lines += [f"| {stage.value} | {event.__name__} | {after.value} |" for event, after in moves.items()]
        if not moves:
            lines.append(f"| {stage.value} | nothing | |")
    return "\n".join(lines) + "\n"


def _commands() -> str:
    parts = ["# The commands", "", "```", _output(["--help"]), "```"]
    for command in COMMANDS:
        parts += ["", f"## welldone {command}", "", "```", _output([command, "--help"]), "```"]
    parts += ["", "## JSON", "", JSON_FORMS.strip()]
    parts += ["", "## Exit codes", "", "| code | means |", "|--:|---|"]
    parts += [f"| {exit.value} | {text} |" for exit, text in EXIT_CODE_MEANINGS.items()]
    return "\n".join(parts) + "\n"


JSON_FORMS = """
Each has a `version`, which changes only when something that is there now changes its meaning or goes.

`welldone lint --json`:

| member | is |
|---|---|
| `verdict` | `right`, `lax` (only findings that are not known to break a client) or `wrong` |
| `frames` | how many frames were heard |
| `findings` | by place; at most 100 of each rule |
| `findings[].rule`, `.severity` | the rule's id; `breaks`, `tolerated` or `style` |
| `findings[].frame`, `.byte` | the frame's number, from 1, and where it begins in the body; null: the whole reply |
| `findings[].heard`, `.wanted` | what was there (cut after 200 characters), and what should have been |
| `findings[].hurts` | whom it hurts and how, each as `client: what happens` |
| `findings[].cause` | the rule whose break in the same reply explains this one; null: nothing else does |

`welldone fix --report FILE`:

| member | is |
|---|---|
| `error` | the error that the stream ends with, in OpenAI's shape; null for a whole answer |
| `usage` | what the server counted, also where the client did not ask for it; null if nothing |
| `mended[].rule`, `.count` | the rule's id, and how often it was mended |
| `mended[].frame`, `.byte`, `.heard` | where it was first met, and what was there |

`welldone check --json`, and `--report FILE.json`: [check-report.schema.json](check-report.schema.json) is the schema.

`welldone bench --json`, and `--report FILE.json`: [bench-report.schema.json](bench-report.schema.json) is the schema.

`welldone rules --json`: `rules[]` with `id`, `severity`, `endpoints`, `rule`, `hurts`, `mend`, `how` and `by`
(`reply` or `probe`).

`welldone models --json`: `folder`, `server` (its address, or null), and `models[]` with `name`, `aliases`, `state`,
`source`, `size_bytes`, `quantisation`, `parameters`, `context_length`, `path` and `problem`.
"""


SETTINGS = """
# Settings of `welldone serve`

Each setting has a flag, an environment variable and a key in TOML, all with one meaning. A flag wins over the
environment, the environment over the file, the file over the default. Where ours is not set, llama-server's variable
(`LLAMA_ARG_…`) is read. Flags behind a `/` turn the setting off.

The file is `welldone.toml` in the folder that the server is started in, or what `--config` names.
[examples/welldone.toml](examples/welldone.toml) shows one with local models, and
[examples/gateway.toml](examples/gateway.toml) one with upstreams. Its tables:

| table | holds |
|---|---|
| `[server]` | the settings of the server |
| `[models.NAME]` | one model; clients ask for it by `NAME` |
| `[models.NAME.defaults]` | what is used where a request is silent (*Answers* below) |
| `[defaults]`, `[defaults.defaults]` | the same for all models |
| `[upstreams.NAME]` | a server that somebody else runs ([below](#an-upstream)) |
| `[routes]` | names that clients say, and what is asked for them ([below](#routes)) |
| `[keys.NAME]` | a key with rights of its own ([below](#a-key)) |
| `[limits]` | where limits are counted ([several front ends](gateway.md#several-front-ends)) |
| `[scale]` and its tables | a cluster, for `welldone scale` ([below](#a-cluster)) |

Keys may be written with `-` for `_`. Relative paths are counted from the file, `~` is the user's home. What is a secret
(keys, commands and their environment, headers) may be written `"env:NAME"`: it is then taken from that variable.

With `-m FILE` one model is served. The models of the file are left aside, but one of the same name gives its settings.
`-m NAME` serves that model of the file alone. Without `-m`, all models of the file are served, and flags and variables
of models count for all of them.

`--upstream URL` is a server to stand in front of, and may be repeated; it needs no file. A URL without a path is asked
at `/v1`. Each is named after its host, as in `gpu-8000`; in the file it has a name of its own and more settings. Models
of this machine and upstreams can be served together. Where there are only upstreams, the built-in model is not served.
"""

UPSTREAM = """
## An upstream

The keys of `[upstreams.NAME]`. Only `url` must be given. `NAME` stands in logs and metrics. Neither its key nor its
headers are ever shown, and no client's key goes there.
"""

ROUTES = """
## Routes

```toml
[routes]
"gpt-4o" = "qwen-7b@lab"               # another name
"gpt-*" = "@openai"                    # any that begins so, by the same name
"fast" = ["qwen-7b@lab", "small@box"]  # the one that has least to do
"mine" = "phi-4"                       # a local model, or all upstreams that have it
```

A name is looked for among the routes, then the models of this machine, then what upstreams declare or list, then the
routes and the declared names with a `*`, of which the longest wins. A target is not looked for among the routes again.
"""

KEY = """
## A key

The keys of `[keys.NAME]`. Only `key` must be given. `NAME` stands in the log for who has it. Keys of `--api-key` may
use all models, at the server's rates.

A key with `models` reaches a model by a name of the file or of an upstream's list. Where a `*` of a route or of an
upstream leads a name on, the key must be for all of that pattern (`qwen-*` is for the route `"qwen-*"`, and not for
`"*"`), or for the model that is asked for in the end. It is shown no other model: not by `/v1/models`, errors,
`/slots` or the page, and `/metrics` is closed to it unless it has `metrics = true`.
"""

SCALE = """
## A cluster

How many replicas there are on a Ray cluster, and what each takes of a machine: [scaling.md](scaling.md) says how to
choose. The keys of `[scale]`:
"""

FRONT = """
The keys of `[scale.front]`, for those who speak to clients:
"""

ENGINE = """
The keys of `[scale.engine]`, for those who run a model; `[scale.engines.NAME]` has the same for one model, and what it
leaves out is as for all:
"""


def _settings() -> str:
    parts = [SETTINGS.strip()]
    for group in serve.SETTING_GROUPS:
        parts += ["", f"## {group}", "", "| flag | environment | TOML | default | |", "|---|---|---|---|---|"]
        parts += [_setting(field) for field in ALL_FIELDS if field.setting.group == group]
    parts += ["", UPSTREAM.strip(), "", *_keys_of(UPSTREAM_FIELDS), "", ROUTES.strip()]
    parts += ["", KEY.strip(), "", *_keys_of(KEY_FIELDS)]
    for text, fields in ((SCALE, SCALE_FIELDS), (FRONT, FRONT_FIELDS), (ENGINE, ENGINE_FIELDS)):
        parts += ["", text.strip(), "", *_keys_of(fields)]
    parts += ["", "## Flags of llama-server that are no settings", ""]
    parts += [
        "Accepted, with a note:",
        "",
        *_foreign(IGNORED_FLAGS),
        "",
        "Refused, with the reason:",
        "",
        *_foreign(REFUSED_FLAGS),
    ]
    return "\n".join(parts) + "\n"


def _setting(field: SettingField) -> str:
    setting = field.setting
    names = " / ".join(
        ", ".join(f"`{flag}`" for flag in group) for group in (setting.flags, setting.off.split()) if group
    )
    variables = ", ".join(f"`{name}`" for name in field.variables[:1])
    tables = {"models.NAME.defaults": DEFAULT_FIELDS, "models.NAME": MODEL_FIELDS, "limits": LIMITS_FIELDS}
    table = next((name for name, fields in tables.items() if field in fields), "server")
    key = "" if field.name == "config" else f"`{table}.{field.name}`"
    cells = [names, variables, key, serve.setting_default(field), _said(field)]
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _keys_of(fields: tuple[SettingField, ...]) -> list[str]:
    """The keys of a table that has no flags."""
    rows = [(f"`{field.name}`", serve.setting_default(field), _said(field)) for field in fields]
    return ["| key | default | |", "|---|---|---|", *(f"| {' | '.join(map(_cell, row))} |" for row in rows)]


def _said(field: SettingField) -> str:
    choices = field.setting.choices.split()
    return field.setting.help + (f" ({', '.join(choices)})" if choices else "")


def _foreign(rows: tuple[LlamaServerFlag, ...]) -> list[str]:
    return [f"- {', '.join(f'`{flag}`' for flag in row.flags)}: {row.reason}" for row in rows]


def _output(arguments: list[str]) -> str:
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        run(arguments)
    return output.getvalue().rstrip()


if __name__ == "__main__":
    sys.exit(main())
