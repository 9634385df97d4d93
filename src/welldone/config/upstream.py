"""Settings of one upstream: a server that requests are forwarded to."""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from welldone.config.settings import DAY_S, QUEUE_MAX, SETTING, Setting, setting_group

setting = setting_group(Setting, "Upstreams")

ALL_RULES = "all"
"""In `strict`: every rule."""

_CONCURRENCY_MAX = 65_535  # each is a connection; there are no more ports to one server


@dataclass(frozen=True, kw_only=True)
class UpstreamSettings:
    """One upstream: its address, models, limits and capabilities."""

    name: str
    """Name of the TOML table, or derived from the URL. A label in logs, metrics and routes."""

    url: str = field(
        metadata={SETTING: Setting("Upstreams", "base URL of its API, such as http://lab:8000/v1", unset="required")}
    )
    key: str | None = setting(None, "its API key; env:NAME reads it from the environment", is_secret=True)
    headers: dict[str, str] = setting({}, "additional headers of every request to it", is_secret=True)
    models: tuple[str, ...] = setting(
        (), "models to request from it; `*` matches any characters", unset="the models that it lists"
    )
    weight: float = setting(
        1.0, "share of requests, relative to other upstreams with the same model", limits=(0.01, 1000)
    )
    # vLLM's default max_num_seqs on most GPUs
    limit: int = setting(256, "concurrent requests; more are queued", limits=(1, _CONCURRENCY_MAX))
    # The next two as for a local model
    queue: int = setting(64, "queued requests; more get status 429", limits=(0, QUEUE_MAX))
    queue_wait_s: float = setting(60.0, "seconds that a request may be queued before status 503", limits=(0, DAY_S))
    first_byte_s: float | None = setting(
        None, "timeout for its first token, in seconds", limits=(0.1, DAY_S), unset="the server's --first-byte"
    )
    idle_s: float | None = setting(
        None, "timeout between two tokens, in seconds", limits=(0.1, DAY_S), unset="the server's --idle"
    )
    stream: str = setting(
        "true",
        "which answers are requested as streams; the others are requested whole and streamed here: true, all; false, "
        "none; no-tools, those to requests without tools; auto, all until one with tools breaks off, then as no-tools "
        "for that model",
        choices="true false no-tools auto",
        words={"true": "true", "false": "false"},
    )
    speaks: tuple[str, ...] = setting(
        (),
        "APIs besides chat that it supports: responses, messages, gemini; requests of their clients are not translated",
        choices="responses messages gemini",
        unset="none",
    )
    chat: bool = setting(
        True, "it supports chat; if not, chat requests are translated to the first API that `speaks` lists"
    )
    n: str = setting(
        "auto",
        "several choices: native, forward n; each, one request per choice; auto, by the kind of server",
        choices="auto native each",
    )
    usage: bool = setting(True, "request usage in streams (`stream_options.include_usage`)")
    think: str = setting(
        "no",
        "extract reasoning from the text: tags, in leading `<think>` tags; open, the opening tag is missing",
        choices="no tags open",
        words={"false": "no", "true": "tags"},
    )
    reasoning_input: str = setting(
        "auto",
        "field for the reasoning that clients send back; auto: that of the model's answers, before the first one both",
        choices="auto reasoning reasoning_content both",
    )
    text: str = setting(
        "delta", "content of each chunk: delta, the new text; cumulative, all text so far", choices="delta cumulative"
    )
    ends: str = setting(
        "finish",
        "what ends an answer: finish, its finish_reason or [DONE]; close, also the end of its HTTP body",
        choices="finish close",
    )
    json_tool_calls: bool = setting(
        False, "convert an answer that is only the JSON of a call, bare or in a code fence, to that tool call"
    )
    finish_reasons: dict[str, str] = setting(
        {}, 'meaning of its own finish_reasons: {Finished = "stop"}', choices="stop length tool_calls content_filter"
    )
    strict: tuple[str, ...] = setting(
        (),
        "rule ids whose violation is an error instead of being repaired; true: all rules",
        words={"true": (ALL_RULES,), "false": ()},
        unset="none",
    )
    sticky: str = setting(
        "none",
        "which requests go to the same upstream while it is healthy, for its prompt cache",
        choices="none key conversation",
    )
    # The paper's example; the load of the fullest is then at most a quarter above the mean
    sticky_bound: float = setting(
        1.25,
        "load up to which it gets sticky requests, as a multiple of its share of all running requests; what exceeds it "
        "goes to the next upstream in the order of the key; 0: no bound",
        limits=(1, 100),
        words={"0": 0.0},
    )
    continues: str = setting(
        "auto",
        "continuation of an answer that broke off: prefill, it continues a final assistant message; "
        "continue_final_message, with this field of vLLM and SGLang; replay, the request is repeated, also with a seed "
        "that it honours; off; auto, by the kind of server, else a replay at temperature 0",
        choices="auto prefill continue_final_message replay off",
    )
    mirror: str = setting(
        "",
        "send a share of its requests to another upstream as well, and compare the replies: UPSTREAM@1%, or "
        "MODEL@UPSTREAM@1%",
        unset="none",
    )
    # An outage is detected within 30 s, and the load is negligible
    probe_s: float = setting(15.0, "seconds between health probes; 0: never", limits=(1, DAY_S), words={"0": 0.0})
    health: str = setting("", "path of its health endpoint, such as /health", unset="list its models")
    ca_file: Path | None = setting(None, "PEM file with CA certificates to trust", unset="the system's")
    insecure: bool = setting(False, "do not verify its certificate")
    is_dynamic: bool = False
    """Whether cluster replicas are assigned to it (`DynamicUpstreams`). Not a setting."""


@dataclass(frozen=True)
class MirrorTarget:
    """A parsed `mirror` of an upstream."""

    model: str
    """Empty: the name at the first upstream."""
    upstream: str
    share: float
    """From 0 to 1."""


_MIRROR = re.compile(r"(?:(?P<model>.+)@)?(?P<upstream>[^@]+)@(?P<share>[0-9]{1,3}(?:\.[0-9]{1,6})?)%")


@lru_cache(64)
def parse_mirror(text: str) -> MirrorTarget:
    """Parse `UPSTREAM@1%` or `MODEL@UPSTREAM@1%`.

    Raises:
        ValueError: it is neither, or the share is not between 0 and 100 %.
    """
    match = _MIRROR.fullmatch(text)
    if match is None or not 0 < float(match["share"]) <= 100:
        raise ValueError(f"{text!r} should be UPSTREAM@1% or MODEL@UPSTREAM@1%, with a share of up to 100%")
    return MirrorTarget(match["model"] or "", match["upstream"], float(match["share"]) / 100)
