"""Defaults, limits and durations in the documents are those of the program."""

import importlib
import re
import tomllib
from collections.abc import Iterator

import yaml

from tests.repository.documents import DEPLOYED, DOCUMENTS, expect_none, spans
from welldone.bench import load
from welldone.bench.settings import BenchSettings
from welldone.cli import bench
from welldone.cli.option_types import parse_duration
from welldone.cli.serve import setting_default
from welldone.config.builtin_model import DEFAULT_MODEL
from welldone.config.model import DEFAULT_SLOTS
from welldone.config.settings import SettingField
from welldone.core.json_budget import BLOCKING_BUDGET_US
from welldone.dialects.responses import emitter
from welldone.engines import cores, supervisor
from welldone.engines.cores import Waiting
from welldone.engines.plan import DEFAULT_CONTEXT_LIMIT
from welldone.gateway import backends
from welldone.server import config_file

FIELDS = (
    *config_file.SERVE_FIELDS,
    *config_file.MODEL_FIELDS,
    *config_file.UPSTREAM_FIELDS,
    *config_file.LIMITS_FIELDS,
    *config_file.SCALE_FIELDS,
)
_COUNTED = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
WORDS = {word: float(number) for number, word in enumerate(_COUNTED, 1)}
WORDS |= {"a": 1, "an": 1, "once": 1, "twice": 2, "sixth": 6, "half a": 0.5, "half an": 0.5}
UNITS = {
    "ms": 0.001,
    "s": 1,
    "second": 1,
    "seconds": 1,
    "minute": 60,
    "minutes": 60,
    "hour": 3600,
    "day": 86_400,
    "KB": 1000,
    "KiB": 2**10,
    "MB": 10**6,
    "MiB": 2**20,
    "%": 0.01,
}
_UNIT = "|".join(sorted(UNITS, key=len, reverse=True))
_NUMBER = rf"\d[\d,]*(?:\.\d+)?|{'|'.join(sorted(WORDS, key=len, reverse=True))}"
FIGURE = rf"(?:(?:{_NUMBER})\b(?:\s*(?:{_UNIT}))?|(?:{_UNIT}))(?!\w)"
"""`30 s`, `4 MiB`, `half a minute`, `an hour`, `second`."""


def value_of(figure: str) -> float:
    """The value in seconds or bytes."""
    found = re.fullmatch(rf"({_NUMBER})?\s*({_UNIT})?", figure)
    assert found is not None, figure
    number = 1 if found[1] is None else WORDS.get(found[1]) or float(found[1].replace(",", ""))
    return number * UNITS.get(found[2], 1)


# Defaults of settings, written as `--keep-alive` (10 s), or in a table with a column `default`.

NAME = r"(?<![\w-])(--?[a-z][a-z-]+|[a-z]+(?:_[a-z]+)+)"


def fields_of(name: str) -> list[SettingField]:
    """The settings with this flag or key; several tables may have the same key."""
    return [field for field in FIELDS if name in (*field.keys, *field.setting.flags)]


def default_of(field: SettingField) -> float | None:
    """The published default, in seconds or bytes; the first one if there are several."""
    found = re.match(r"\d+(\.\d+)?", setting_default(field))
    return None if found is None else float(found[0]) * (2**20 if field.name.endswith("_mib") else 1)


def stated_defaults() -> Iterator[tuple[str, str, str]]:
    """Position, name and figure of each default."""
    statement = re.compile(rf"{NAME}(?: \w+)?`?(?: seconds)?(?: \(|, )({FIGURE})(?=[);:]| by default)")
    for document, text in (DOCUMENTS | DEPLOYED).items():
        for found in statement.finditer(text):
            yield position(document, text, found.start()), found[1], found[2]
    for span in spans():
        if span.column == "setting" and re.fullmatch(FIGURE, span.row.get("default", "")):
            yield f"{span.document}:{span.line}", span.text, span.row["default"]


def position(document: str, text: str, offset: int) -> str:
    """The document and the line."""
    return f"{document}:{text.count(chr(10), 0, offset) + 1}"


def test_every_default_of_a_setting_is_that_of_the_program() -> None:
    problems = []
    for place, name, figure in stated_defaults():
        published = {field.name: default_of(field) for field in fields_of(name)}
        if published and value_of(figure) not in published.values():
            problems.append(f"{place}: {name} ({figure}), but the default is {published}")
    expect_none(problems)


# Other figures, each with the constant or the setting that it is taken from.

QUICK, FULL = bench._QUICK_DEFAULTS, BenchSettings(url="")
QUICK_TOKENS = QUICK.decode.num_tokens if QUICK.decode else 0
MODEL_BYTES = round(DEFAULT_MODEL.wheel_bytes, -6)
KUBERNETES = tomllib.loads(DEPLOYED["deploy/kubernetes/welldone.toml"])
ALERTS = yaml.safe_load(DEPLOYED["deploy/prometheus/alerts.yml"])["groups"][0]["rules"]
FOR_S = {rule["alert"]: parse_duration(rule["for"]) for rule in ALERTS}
THRESHOLDS = {
    rule["alert"]: float(rule["expr"].split()[-1]) for rule in ALERTS if re.search(r"> [\d.]+$", rule["expr"])
}
Value = str | float

STATEMENTS: dict[str, list[tuple[str, *tuple[Value, ...]]]] = {
    "README.md": [
        ("built-in 135M model, {}, downloaded", MODEL_BYTES),
    ],
    "SECURITY.md": [
        ("in memory**: {} responses,", "stored_responses"),
        (" responses, {} background responses, and {} of", "server.api.responses._MAX_BACKGROUND", "resume_bytes"),
        ("more than {} of a quiet machine", BLOCKING_BUDGET_US / 1e6),
        ("of more than {} or {} lines", "core.sse.FRAME_LIMIT_BYTES", "core.sse.FRAME_LINES_LIMIT"),
        ("of more than {} that is not strict JSON", "core.lenient_json.LENIENT_LIMIT_BYTES"),
        (
            "may have {} and {} commas",
            "core.json_budget.STEPWISE_LIMIT_BYTES",
            "core.json_budget.ELEMENTS_LIMIT",
        ),
        ("not used within the {} before", "server.access.keys.UNUSED_TTL_S"),
    ],
    "docs/bench.md": [
        ("a warm-up of {}, then {} with one user", QUICK.warmup_s, QUICK.duration_s),
        ("slots ({} where it does not tell), each with answers of {} tokens", DEFAULT_SLOTS, QUICK_TOKENS),
        (
            "it takes {} minutes and up to {} users",
            (FULL.warmup_s + (FULL.num_rates + 1) * FULL.duration_s) / 60,
            FULL.max_vus,
        ),
        ("(each step) | {} | {} |", QUICK.duration_s, FULL.duration_s),
        ("(one user; `0s`: none) | {} | {} |", QUICK.warmup_s, FULL.warmup_s),
        ("`--grace` | {} | {} |", QUICK.grace_s, FULL.grace_s),
        ("rising rates up to {} times that", "bench.load.SWEEP_HEADROOM"),
        ("the next one: {}, then twice as long each time, up to {}.", *load._BACKOFF_S),
        ("shown only if {} samples lie beyond", "bench.stats._MIN_SAMPLES_BEYOND"),
        ("Above {} of a core", "bench.load._BUSY_CPU_SHARE"),
        ("in turn, in {} rounds", "bench.run.COMPARISON_ROUNDS"),
    ],
    "docs/check.md": [
        ("After {} requests without a complete reply", "check.probe_client._FAILED_REQUESTS_LIMIT"),
        ("was longer than {} |", "check.probe_client.MAX_REPLY_BYTES"),
        ("fewer than {} characters is treated", "http.redaction.MIN_KEY_LENGTH"),
    ],
    "docs/dialects.md": [
        ("every {} time in a row a `keepalive`", emitter._COMMENTS_LIMIT + 1),
        ("Up to {} messages wait", "http.websocket._QUEUE_LIMIT"),
        ("remembers {} ids", "server.api.response_store.MAX_IDS"),
        ("so the default is {} |", "server.requests.chat_to_messages.DEFAULT_MAX_TOKENS"),
    ],
    "docs/docker.md": [
        ("at the first start ({}) and", MODEL_BYTES),
        ("because the default, {word}, is", "host"),
        ("GET /livez` on port {},", "port"),
    ],
    "docs/engines.md": [
        ("defaults: `-b {} -ub {} -fa {word}`", "batch_size", "ubatch_size", "flash_attn"),
        (
            "less than {} of weights, one core in {} has none",
            "engines.cores.SMALL_MODEL_BYTES",
            "engines.cores.CORES_PER_SPARE",
        ),
        ("for {} seconds, welldone restarts", cores.CHECK_S * cores.CHECKS),
        ("After at least {} (", "engines.cores.CALM_S"),
        ("up to {} hours)", cores.CALM_S * 2**cores.CALM_DOUBLINGS // 3600),
        ("no request for {} and", "engines.supervisor.UNUSED_S"),
        ("On fewer than {} CPUs", "engines.cores.CORES_PER_SPARE"),
        ("they spin {} times", float(Waiting.SPIN_BRIEFLY.variables["GOMP_SPINCOUNT"])),
        ("run at once; the default is {}.", DEFAULT_SLOTS),
    ],
    "docs/gateway.md": [
        ("after {} failures in a row the upstream is skipped", "gateway.upstream.UNHEALTHY_AFTER_PROBES"),
        (
            "opens after {} failed requests in a row, for {} and longer",
            "gateway.upstream.FAILURE_THRESHOLD",
            "gateway.upstream.OPEN_S",
        ),
        ("`Retry-After`, at most {};", "gateway.upstream.COOLDOWN_MAX_S"),
        ("without one for {} |", "gateway.error_mapping._DEFAULT_RETRY_AFTER_S"),
        ("gateway retries {}, at another upstream", backends._MAX_ATTEMPTS - 1),
        ("at most {} times `first_byte_s`", "server.generation.attempt._KEEP_ALIVE_FACTOR"),
        ("that took at most {} so far", "server.generation.continuation._SHORT_REPLAY_S"),
        ("| more than {}, or content of an unknown kind", "core.continuation.DELIVERED_LIMIT_BYTES"),
        ("| wait {} for the model", "engines.supervisor.RELOAD_WAIT_S"),
        ("and the last {} comparisons", "server.generation.mirror.KEPT_COMPARISONS"),
        ("or more than {} from `new`", "server.generation.mirror.REPLY_LIMIT_BYTES"),
        ("It has a limit of {}, takes", "server.generation.mirror.TIME_LIMIT_S"),
        ("when {} are in progress", "server.generation.mirror.MAX_RUNNING"),
        ("the first reply has more than {} |", "server.generation.mirror.BODY_LIMIT_BYTES"),
        ("After {} failures in a row without a success", "gateway.upstream.FAILING_AFTER_REQUESTS"),
        ("is accepted within {}. A removed", "server.access.keys.NEGATIVE_TTL_S"),
        ("accepted for up to {} more seconds", "server.access.keys.CACHE_TTL_S"),
        ("waits for Redis longer than {},", "server.access.store.STORE_TIMEOUT_S"),
        ("for {}, what is missing in Redis", "server.access.store.STORE_SETTLE_S"),
        ("within the last {} stay valid", "server.access.keys.UNUSED_TTL_S"),
        ("| tried every {} |", "server.access.store.STORE_RETRY_S"),
    ],
    "docs/kubernetes.md": [
        (
            "DNS name disappears within about 5 s, and {} of welldone's health checks",
            "gateway.upstream.UNHEALTHY_AFTER_PROBES",
        ),
        ("(`probe_s = {}`)", KUBERNETES["upstreams"]["vllm-0"]["probe_s"]),
        ("drain_s {}            SIGKILL", KUBERNETES["server"]["drain_s"]),
        ("accepts {} concurrent requests (`connections`)", "connections"),
        ("a comment after each {} without data (`keep_alive_s`)", "keep_alive_s"),
        ("proxy's keep-alive: {} here", KUBERNETES["server"]["head_s"]),
    ],
    "docs/migration.md": [
        ("| port 8080 by default | port {};", "port"),
        ("{} slots of at most {} tokens each", DEFAULT_SLOTS, DEFAULT_CONTEXT_LIMIT / DEFAULT_SLOTS),
        ("`n` is at most {},", "schemas.chat.CHOICES_LIMIT"),
        ("port 4000 by default | port {};", "port"),
        ("opens after {} failures in a row, for {},", "gateway.upstream.FAILURE_THRESHOLD", "gateway.upstream.OPEN_S"),
    ],
    "docs/monitoring.md": [
        ("shows them again every {} until", "cli.status._INTERVAL_S"),
        ("in the last {}, without those", "server.observe.counters.WINDOW_S"),
        ("of any welldone server for {}.", FOR_S["WelldoneAbsent"]),
        ("has returned 503 for {}.", FOR_S["WelldoneNotReady"]),
        ("at least {} in a row, although", "gateway.upstream.FAILING_AFTER_REQUESTS"),
        ("answered health probes for {}.", FOR_S["WelldoneUpstreamDown"]),
        ("attempts at an upstream failed for {}.", FOR_S["WelldoneUpstreamErrors"]),
        ("More than {} of the requests fail for {}:", THRESHOLDS["WelldoneErrorRate"], FOR_S["WelldoneErrorRate"]),
        ("have been full for {},", FOR_S["WelldoneQueueFull"]),
        ("starts after more than {}.", THRESHOLDS["WelldoneSlowFirstToken"]),
        ("For {} an upstream's answers", FOR_S["WelldoneRepairRate"]),
    ],
    "docs/observability.md": [
        ("| `{word}` (default) | |", "log_format"),
        ("| `--tracing {word}` (default) |", "tracing"),
        ("Lists have {} items", "server.observe.short_line._LISTED"),
        ("Every {} there is one more line", "server.observe.counters.INTERVAL_S"),
        ("the {} most frequent rules", "server.observe.counters._RULES"),
        ("at most once in {}.", "server.observe.otel._REPORT_S"),
        ("exported for up to {}.", "server.observe.otel._CLOSE_S"),
        ("longer than {} characters", "server.observe.tracing._TRACESTATE_LIMIT"),
    ],
    "docs/page.md": [
        ("a request of {} (`--body-limit`)", "body_limit_bytes"),
        (
            "accepts up to {} and {} lines",
            "server.inspector.lint.LINT_LIMIT_BYTES",
            "server.inspector.lint.LINT_LINES_LIMIT",
        ),
        ("longer than {} is checked in a separate process", "server.inspector.api._THREAD_LIMIT_BYTES"),
        ("that upstreams send, up to {}, readable", "server.inspector.captures.CAPTURE_LIMIT_BYTES"),
        ("repair rate of the last {},", "server.observe.counters.WINDOW_S"),
        ("the last {} requests:", "server.inspector.recent.RECENT_LIMIT"),
    ],
    "docs/passing.md": [
        ("for each of them, at most {};", "core.request_facts.CHAT_CHOICES_LIMIT"),
        ("`n` (1 to {})", "core.request_facts.CHAT_CHOICES_LIMIT"),
        ("truncated at {} characters", "gateway.error_mapping._MESSAGE_LIMIT"),
    ],
    "docs/resume.md": [
        ("besides {} of each running one", "server.resume.streams._UNREAD_BYTES"),
        ("takes at most {} at once", "server.resume.streams.BATCH_BYTES"),
        ("A copy is {} behind", "server.resume.sources._COPY_INTERVAL_S"),
        ("writes to its copies at least every {}, and", "server.resume.sources.HEARTBEAT_S"),
        ("counts as dead after {} without a write", "server.resume.sources.DEAD_S"),
        ("copy is kept for {} after the", "server.resume.sources.COPY_TTL_S"),
        ("takes effect within a {}.", "server.resume.sources.HEARTBEAT_S"),
        ("until {} after Redis is back:", "server.access.store.STORE_SETTLE_S"),
    ],
    "docs/scaling.md": [
        ("retried elsewhere, up to {} times", backends._MAX_ATTEMPTS_DYNAMIC - 1),
    ],
    "docs/serve.md": [
        ("| the built-in model ({}) |", MODEL_BYTES),
        ("listens on `http://127.0.0.1:{}/v1`", "port"),
        ("wrong key, name or character, at most {} |", "core.json_tool_calls.HELD_LIMIT"),
        ("It may take up to {} (`start_limit_s`)", "config.model.COMMAND_LOAD_TIMEOUT_S"),
        ("{} slots of at most {} tokens each", DEFAULT_SLOTS, DEFAULT_CONTEXT_LIMIT / DEFAULT_SLOTS),
        ("after another crash within {} with a delay", "engines.supervisor.BACKOFF_RESET_S"),
        ("doubles from {} to {})", 2 * supervisor.BACKOFF_INITIAL_S, "engines.supervisor.BACKOFF_MAX_S"),
        ("at once; {} later the next one is loaded", "engines.supervisor.STANDBY_DELAY_S"),
        ("accepts a new key within {}, and", "server.access.keys.NEGATIVE_TTL_S"),
        ("removed one for up to {} more.", "server.access.keys.CACHE_TTL_S"),
        ("A key has at least {} characters", "http.redaction.MIN_KEY_LENGTH"),
    ],
    "docs/systemd.md": [
        ("`TimeoutStopSec` must be {} more", "cli.supervisor.KILL_AFTER_S"),
    ],
    "docs/troubleshooting.md": [
        ("is shorter than {} characters", "http.redaction.MIN_KEY_LENGTH"),
        ("more than {} of bodies", "server.parts.BODY_BUDGET_BYTES"),
        ("`was not ready within {}`", "config.model.LOAD_TIMEOUT_S"),
        ("for a `command` the default is {} |", "config.model.COMMAND_LOAD_TIMEOUT_S"),
        ("the head arrives after {}, tokens", "early_s"),
    ],
    "docs/vllm.md": [
        ("is logged after {}, 20, 40", "cli.service._FIRST_LOG_S"),
        ("80 s and then every {},", "cli.service._MAX_LOG_INTERVAL_S"),
        ("gets its headers after {} and a keep-alive comment every {},", "early_s", "keep_alive_s"),
        ("time limit for the start: {}.", "config.model.COMMAND_LOAD_TIMEOUT_S"),
        ("concurrent requests: {}, vLLM's own", "config.model.COMMAND_SLOTS"),
        ("then vLLM gets SIGTERM and {}.", "engines.supervisor.STOP_TIMEOUT_S"),
        ("welldone tries {} times", "engines.supervisor.MAX_FAILED_STARTS"),
        ("`was not ready within {}`", "config.model.COMMAND_LOAD_TIMEOUT_S"),
    ],
}
"""Sentences of each document: `{}` is a figure, `{word}` a word."""


def resolve(value: Value) -> object:
    """The default of a setting, or a constant of a module; None if it is gone."""
    if not isinstance(value, str):
        return value
    module, _, name = value.rpartition(".")
    if module:
        return getattr(importlib.import_module(f"welldone.{module}"), name, None)
    return next((field.default for field in fields_of(value)), None)


def pattern_of(statement: str) -> re.Pattern[str]:
    """The pattern of a statement, whose words may be on several lines."""
    parts = re.split(r"(\{\}|\{word\})", statement)
    groups = {"{}": f"({FIGURE})", "{word}": r"([\w.]+)"}
    return re.compile("".join(groups.get(part) or re.sub(r"(\\ )+", r"\\s+", re.escape(part)) for part in parts))


def test_every_other_figure_is_that_of_the_program() -> None:
    problems = []
    for document, statements in STATEMENTS.items():
        text = DOCUMENTS[document]
        for statement, *values in statements:
            found = pattern_of(statement).search(text)
            if found is None:
                problems.append(f"{document}: there is no statement {statement!r}: was it reworded?")
                continue
            for figure, value in zip(found.groups(), values, strict=True):
                expected = resolve(value)
                stated = figure if isinstance(expected, str) else value_of(figure)
                if stated != expected:
                    name = value if isinstance(value, str) else "the program"
                    problems.append(
                        f"{position(document, text, found.start())}: {found[0]!r}, but {name} has {expected}"
                    )
    expect_none(problems)
