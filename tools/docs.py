"""Write the documents that are generated from the code: commands, settings, request fields, protocol, rule pages and
their index, report schemas, OpenAPI, the manual page, and the tables of servers.md and scaling.md.

With --check nothing is written, and the exit code is 1 if a document is stale.
"""

import argparse
import contextlib
import io
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from welldone.bench.reports import data as bench_data
from welldone.check.reports import machine
from welldone.cli import serve
from welldone.cli.main import COMMANDS, run
from welldone.cli.models import ModelRow
from welldone.cli.serve import IGNORED_FLAGS, REFUSED_FLAGS
from welldone.cli.server_status import ModelStatus, RequestStatus, ServerStatus, UpstreamStatus
from welldone.cli.ui import EXIT_CODE_MEANINGS
from welldone.config.settings import Setting, SettingField
from welldone.core import finish_reasons, state
from welldone.core.catalog import FAMILIES, RULES, Detection, Form, Kind, Rule, Severity
from welldone.schemas.anthropic import AnthropicRequest
from welldone.schemas.chat import ChatRequest, CompletionRequest
from welldone.schemas.fields import FieldHandling, FieldInfo, describe_fields
from welldone.schemas.gemini import GeminiRequest, GenerationConfig
from welldone.schemas.responses import CompactRequest, ResponseRequest
from welldone.server.api import openapi
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

import capacity  # isort: skip  # the folder of a script is on its path
import man_page  # isort: skip
import server_page  # isort: skip

DOCS = Path(__file__).parent.parent / "docs"
ROW, END_OF_ROW = "<!-- row -->", "<!-- /row -->"
REASONS, END_OF_REASONS = "<!-- reasons -->\n", "<!-- /reasons -->"


def main() -> int:
    """Write the documents, or report which are stale."""
    parser = argparse.ArgumentParser(description="Write the generated documents.")
    parser.add_argument("--check", action="store_true", help="only report stale documents")
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
    documents = {DOCS / "rules" / f"{rule.id}.md": _rule_page(rule) for rule in RULES.values()}
    documents[DOCS / "rules" / "README.md"] = _rule_index()
    documents[DOCS / "decisions" / "README.md"] = _decision_index()
    documents[DOCS / "protocol.md"] = _protocol_page()
    documents[DOCS / "cli.md"] = _cli_page()
    documents[DOCS / "settings.md"] = _settings_page()
    documents[man_page.PATH] = man_page.render()
    documents[DOCS / "requests.md"] = _requests_page()
    documents[DOCS / "servers.md"] = server_page.render(server_page.load_pages(DOCS / "servers"))
    documents[DOCS / "scaling.md"] = capacity.render((DOCS / "scaling.md").read_text("utf-8"))
    documents[DOCS / "openapi.json"] = json.dumps(openapi.full_openapi_document(), indent=2) + "\n"
    documents[DOCS / "bench-report.schema.json"] = json.dumps(bench_data.report_schema(), indent=2) + "\n"
    documents[DOCS / "check-report.schema.json"] = json.dumps(machine.report_schema(), indent=2) + "\n"
    return documents


def _requests_page() -> str:
    lines = [
        "# Request fields",
        "",
        "How the server handles each field of a request to `/v1/chat/completions` and `/v1/completions`. For local",
        "models a field that is not listed is ignored. An invalid value is refused with a 400 that names the field and",
        "the limit. The table is generated from `src/welldone/schemas/chat.py`.",
    ]
    chat, completions = describe_fields(ChatRequest), describe_fields(CompletionRequest)
    generation_rows = [(row, "both" if row in completions else "chat") for row in chat]
    generation_rows += [(row, "completions") for row in completions if row not in chat]
    for handling in FieldHandling:
        lines += ["", f"## {handling.value[0].upper()}{handling.value[1:]}"]
        lines += ["", "| field | endpoint | values |", "|---|---|---|"]
        lines += [
            f"| `{row.name}` | {endpoint} | {_cell(row.note)} |"
            for row, endpoint in generation_rows
            if row.handling is handling
        ]
    for path, rows, rest in (
        ("/v1/responses", describe_fields(ResponseRequest), "Other fields are read as chat fields."),
        ("/v1/responses/compact", describe_fields(CompactRequest), "Other fields are ignored."),
        ("/v1/messages", describe_fields(AnthropicRequest), "Other fields are ignored."),
        ("/v1beta/models/{model}:generateContent", _gemini_fields(), "Other fields are ignored."),
    ):
        lines += ["", f"## `{path}`", "", f"Requests are translated to chat requests. {rest}"]
        lines += ["", "| field | handling | values |", "|---|---|---|"]
        lines += [f"| `{row.name}` | {row.handling.value.partition(':')[0]} | {_cell(row.note)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _gemini_fields() -> list[FieldInfo]:
    """The fields of a request of Google's API, with those of its generationConfig."""
    inner = describe_fields(GenerationConfig)
    prefixed = [msgspec.structs.replace(row, name=f"generationConfig.{row.name}") for row in inner]
    return [row for row in describe_fields(GeminiRequest) if row.name != "generationConfig"] + prefixed


def _rule_page(rule: Rule) -> str:
    """The page with its generated parts replaced."""
    page = (DOCS / "rules" / f"{rule.id}.md").read_text("utf-8")
    before, _, rest = page.partition(ROW)
    _, _, after = rest.partition(END_OF_ROW)
    if REASONS in after:
        text, _, rest = after.partition(REASONS)
        after = text + REASONS + _finish_reasons() + END_OF_REASONS + rest.partition(END_OF_REASONS)[2]
    return before + ROW + "\n" + _rule_row(rule) + END_OF_ROW + after


def _finish_reasons() -> str:
    """Table of the finish reasons of each provider, with a list of the sources."""
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


def _rule_row(rule: Rule) -> str:
    forms = "".join(_form_section(rule, name, form) for name, form in rule.forms.items())
    return (
        f"{rule.summary}\n\n"
        f"| kind | severity | endpoint | repair |\n|---|---|---|---|\n"
        f"| {rule.kind} | {rule.severity} | {', '.join(rule.endpoints)} | {rule.repairability}: {rule.repair} |\n\n"
        f"**Source.** {rule.source}: {_cell(rule.section)} ({rule.date}).\n\n"
        f"**Affected clients.** Each is measured with the version named, or read in its source.\n\n{forms}"
    )


def _form_section(rule: Rule, name: str, form: Form) -> str:
    """The clients that one form of a violation affects; with its name, if the rule has several."""
    if len(rule.forms) == 1:
        return "".join(f"- {client}\n" for client in form.affects) or "- none known\n"
    kind = "" if form.kind is None else f", {form.kind}"
    name = {"any": "any other", "accepted": "accepted by the known clients"}.get(name, name)
    clients = "".join(f"  - {client}\n" for client in form.affects) or "  - none known\n"
    return f"- *{name}* ({form.severity}{kind})\n{clients}"


def _rule_index() -> str:
    probes = sum(rule.detection is Detection.PROBE for rule in RULES.values())
    kinds = ", ".join(f"{sum(rule.kind is kind for rule in RULES.values())} {kind}" for kind in Kind)
    counts = ", ".join(
        f"{sum(rule.severity is severity for rule in RULES.values())} {severity}" for severity in Severity
    )
    lines = [
        "# Rules",
        "",
        f"{len(RULES)} rules. Each has a kind, which says what it rests on ({kinds}):",
        "",
        "| kind | the rule rests on | `check` and `lint` |",
        "|---|---|---|",
        "| specified | a published specification or schema | fail |",
        "| observed | what OpenAI's own replies do | fail |",
        "| breaks | a real client that a violation breaks, where no specification says it | fail |",
        "| advice | our advice | warn; fail only with `--strict` |",
        "",
        "The page of a rule names the source, its section and the day on which it was read.",
        "",
        f"The severity says what a violation does to clients ({counts}). *breaks*: a real client fails, loses data or",
        "hangs. *tolerated*: clients usually cope. *style*: OpenAI does it differently.",
        "",
        f"{len(RULES) - probes} rules are judged on one *reply*, by `welldone lint` and `welldone check`; their",
        f"pages have a wrong and a right example, which run as tests. {probes} rules need a *probe*: `welldone check`",
        "sends requests to a server and compares the replies or measures their timing.",
    ]
    for family, title in FAMILIES.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| rule | kind | severity | judged on | repair | description |",
            "|---|---|---|---|---|---|",
        ]
        for rule in RULES.values():
            if rule.family == family:
                link = f"[{rule.id}]({rule.id}.md)"
                cells = [link, rule.kind, rule.severity, rule.detection, rule.repairability, _cell(rule.summary)]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _decision_index() -> str:
    lines = ["# Decisions", "", "Choices that a successor might reverse by mistake, with their reasons.", ""]
    for path in sorted((DOCS / "decisions").glob("[0-9]*.md")):
        title = path.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _protocol_page() -> str:
    return (
        "# Order of events\n\n"
        "A writer accepts events only in the order of these tables, which are generated from\n"
        "`src/welldone/core/state.py`; another order raises `EventOrderError`. The repairer brings the events of\n"
        "any stream into a legal order.\n\n"
        "## A chat choice\n\n" + _transition_table("choice", state.CHAT_TRANSITIONS) + "\n"
        "Choices start in the order of their index. The arguments of a tool call end before the next call begins.\n"
        "`Logprobs`, and `UnknownFields` without `in_own_chunk`, are sent with the next chunk of their choice.\n\n"
        "## A completions choice\n\n" + _transition_table("choice", state.COMPLETIONS_TRANSITIONS) + "\n"
        "## The stream\n\n" + _transition_table("stream", state.STREAM_TRANSITIONS) + "\n"
        "`Usage` follows the last `Finish`. After `Failure`, or when all choices are finished, the stream ends with\n"
        "`data: [DONE]`.\n"
    )


def _transition_table(subject: str, transitions: Mapping[Any, Mapping[Any, Any]]) -> str:
    lines = [f"| state of the {subject} | event | next state |", "|---|---|---|"]
    for before, events in transitions.items():
        lines += [f"| {before.value} | {event.__name__} | {after.value} |" for event, after in events.items()]
        if not events:
            lines.append(f"| {before.value} | none | |")
    return "\n".join(lines) + "\n"


def _cli_page() -> str:
    parts = ["# Commands", "", "```", _output(["--help"]), "```"]
    for command in COMMANDS:
        parts += ["", f"## welldone {command}", "", "```", _output([command, "--help"]), "```"]
    parts += ["", "## JSON", "", JSON_OUTPUT.strip()]
    for command, struct in (("rules", Rule), ("models", ModelRow)):
        parts += ["", f"`welldone {command} --json` has `{command}[]`, each with {_field_names(struct)}."]
    parts += ["`models` also has `folder` and `server`, the URL of the running server or null."]
    parts += ["", f"`welldone status --json` has {_field_names(ServerStatus)}; its lists:", ""]
    for name, struct in (("models", ModelStatus), ("upstreams", UpstreamStatus), ("errors", RequestStatus)):
        parts += [f"- `{name}[]`: {_field_names(struct)}"]
    parts += ["", "## Exit codes", "", "| code | meaning |", "|--:|---|"]
    parts += [f"| {exit.value} | {text} |" for exit, text in EXIT_CODE_MEANINGS.items()]
    return "\n".join(parts) + "\n"


def _field_names(struct: type[msgspec.Struct]) -> str:
    *names, last = (f"`{name}`" for name in struct.__struct_encode_fields__)
    return f"{', '.join(names)} and {last}"


JSON_OUTPUT = """
Every output has a `version`, which increases when a field is removed, renamed or changes its meaning. New fields may be
added at any time, so ignore unknown ones.

`welldone lint --json`:

| field | content |
|---|---|
| `verdict` | `pass`, `warn` (only advice is broken) or `fail` |
| `frames` | number of frames |
| `findings` | in order of position; at most 100 of each rule |
| `findings[].rule`, `.severity` | rule id; `breaks`, `tolerated` or `style` |
| `findings[].frame`, `.byte` | number of the frame, from 1, and its offset in the body; null: the whole reply |
| `findings[].observed`, `.expected` | the value in the reply (at most 200 characters), and the expected one |
| `findings[].affects` | clients that this form affects, each as `client: what happens (measured with …)` |
| `findings[].kind` | what the rule rests on: `specified`, `observed`, `breaks` or `advice` |
| `findings[].form` | what is wrong, such as `missing` or `null`; null if the rule has one form |
| `findings[].cause` | the rule whose violation in the same reply explains this one; null for a root cause |

`welldone fix --report FILE`:

| field | content |
|---|---|
| `error` | the error that ends the stream, in OpenAI's shape; null for a complete answer |
| `usage` | the server's usage, also if the client did not request it; null if there is none |
| `repairs[].rule`, `.count` | rule id, and number of repairs |
| `repairs[].frame`, `.byte`, `.observed` | position and value of the first violation |

The output of `welldone check --json` and `--report FILE.json` has the schema
[check-report.schema.json](check-report.schema.json), that of `welldone bench` the schema
[bench-report.schema.json](bench-report.schema.json).
"""


SETTINGS = """
# Settings of `welldone serve`

Each setting has a flag, an environment variable and a TOML key. A flag takes precedence over the environment, the
environment over the file, and the file over the default. If the variable of a setting is not set, the variable of
llama-server (`LLAMA_ARG_…`) is read. Flags after a `/` disable the setting.

The file is `welldone.toml` in the working directory, or the file given with `--config`.
[examples/welldone.toml](examples/welldone.toml) configures local models,
[examples/gateway.toml](examples/gateway.toml) upstreams. Tables:

| table | content |
|---|---|
| `[server]` | settings of the server |
| `[models.NAME]` | a local model; clients request it as `NAME` |
| `[models.NAME.defaults]` | defaults for fields that a request omits (*Answers* below) |
| `[defaults]`, `[defaults.defaults]` | the same for all models |
| `[upstreams.NAME]` | another server ([below](#an-upstream)) |
| `[routes]` | model names and their targets ([below](#routes)) |
| `[keys.NAME]` | an API key with permissions and limits of its own ([below](#a-key)) |
| `[limits]` | where rate limits are counted ([several front ends](gateway.md#several-front-ends)) |
| `[scale]` and its tables | a cluster, for `welldone scale` ([below](#a-cluster)) |

Keys may be written with `-` instead of `_`. Relative paths are relative to the file, and `~` is the user's home
directory. Secrets (keys, commands and their environment, headers) may be written as `"env:NAME"`, which reads the
environment variable `NAME`.

`-m FILE` serves only that model; settings of a model with the same name in the file still apply. `-m NAME` serves only
that model of the file. Without `-m`, all models of the file are served, and flags and variables of model settings apply
to all of them.

`--upstream URL` adds an upstream without a file, and may be repeated. A URL without a path means `/v1`. The upstream is
named after its host, for example `gpu-8000`; in the file it has a name of its own and more settings. Local models and
upstreams can be served together. The built-in model is not served if there are only upstreams.
"""

UPSTREAM = """
## An upstream

Keys of `[upstreams.NAME]`. Only `url` is required. `NAME` is used in logs and metrics. The key and the headers are
never shown, and keys of clients are not forwarded.
"""

ROUTES = """
## Routes

```toml
[routes]
"gpt-4o" = "qwen-7b@lab"               # an alias
"gpt-*" = "@openai"                    # every name with this prefix, forwarded unchanged
"fast" = ["qwen-7b@lab", "small@box"]  # the target with the least load
"mine" = "phi-4"                       # a local model, or all upstreams that have it
```

A model name is looked up in the routes, then in the local models, then in the models that upstreams declare or list,
then in the routes and declared names with a `*`, of which the longest wins. Targets are not looked up in the routes
again.
"""

KEY = """
## A key

Keys of `[keys.NAME]`. Only `key` is required. `NAME` identifies the key in the log. Keys given with `--api-key` may use
all models, at the server's rate limits.

A key with `models` may use these models by their names in the file or in an upstream's list. If a `*` of a route or of
an upstream matches the name, the key must allow the whole pattern (`qwen-*` allows the route `"qwen-*"`, but not `"*"`)
or the target model. Other models are hidden from it in `/v1/models`, errors, `/slots` and the web page, and `/metrics`
is refused unless the key has `metrics = true`.
"""

SCALE = """
## A cluster

Number of replicas on a Ray cluster and their resources; [scaling.md](scaling.md) explains how to choose them. Keys of
`[scale]`:
"""

FRONT = """
Keys of `[scale.front]`, the replicas that serve clients:
"""

ENGINE = """
Keys of `[scale.engine]`, the replicas that run a model. `[scale.engines.NAME]` overrides them for one model:
"""


def _settings_page() -> str:
    parts = [SETTINGS.strip()]
    for group in serve.SETTING_GROUPS:
        parts += [
            "",
            f"## {group}",
            "",
            "| flag | environment | TOML | default | description |",
            "|---|---|---|---|---|",
        ]
        parts += [_setting_row(field) for field in ALL_FIELDS if field.setting.group == group]
    parts += ["", UPSTREAM.strip(), "", *_key_table(UPSTREAM_FIELDS), "", ROUTES.strip()]
    parts += ["", KEY.strip(), "", *_key_table(KEY_FIELDS)]
    for text, fields in ((SCALE, SCALE_FIELDS), (FRONT, FRONT_FIELDS), (ENGINE, ENGINE_FIELDS)):
        parts += ["", text.strip(), "", *_key_table(fields)]
    parts += ["", "## Other flags of llama-server", ""]
    parts += [
        "Accepted and ignored, with a note:",
        "",
        *_flag_list(IGNORED_FLAGS),
        "",
        "Refused, with the reason:",
        "",
        *_flag_list(REFUSED_FLAGS),
    ]
    return "\n".join(parts) + "\n"


def _setting_row(field: SettingField) -> str:
    setting = field.setting
    names = " / ".join(
        ", ".join(f"`{flag}`" for flag in group) for group in (setting.flags, setting.off.split()) if group
    )
    variables = ", ".join(f"`{name}`" for name in field.variables[:1])
    tables = {"models.NAME.defaults": DEFAULT_FIELDS, "models.NAME": MODEL_FIELDS, "limits": LIMITS_FIELDS}
    table = next((name for name, fields in tables.items() if field in fields), "server")
    key = "" if field.name == "config" else f"`{table}.{field.name}`"
    cells = [names, variables, key, serve.setting_default(field), _description(field)]
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _key_table(fields: tuple[SettingField, ...]) -> list[str]:
    """Table of settings that have no flags."""
    rows = [(f"`{field.name}`", serve.setting_default(field), _description(field)) for field in fields]
    return ["| key | default | description |", "|---|---|---|", *(f"| {' | '.join(map(_cell, row))} |" for row in rows)]


def _description(field: SettingField) -> str:
    choices = field.setting.choices.split()
    return field.setting.help + (f" ({', '.join(choices)})" if choices else "")


def _flag_list(rows: tuple[Setting, ...]) -> list[str]:
    return [f"- {', '.join(f'`{flag}`' for flag in row.flags)}: {row.help}" for row in rows]


def _output(arguments: list[str]) -> str:
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        run(arguments)
    return output.getvalue().rstrip()


if __name__ == "__main__":
    sys.exit(main())
