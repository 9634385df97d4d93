"""Settings of one upstream: a server that requests are forwarded to."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from welldone.config.settings import Setting

UPSTREAMS = "Upstreams"

ALL_RULES = "all"
"""In `strict`: every rule."""

_CONCURRENCY_MAX = 65_535  # each is a connection; there are no more ports to one server
_QUEUE_MAX = 100_000  # each queued request holds its body and a connection
_DAY_S = 86_400.0  # longer timeouts are mistakes


@dataclass(frozen=True, kw_only=True)
class UpstreamSettings:
    """One upstream: its address, models, limits and capabilities."""

    name: str
    """Name of the TOML table, or derived from the URL. A label in logs, metrics and routes."""

    url: Annotated[str, Setting("", "base URL of its API, such as http://lab:8000/v1", UPSTREAMS, unset="required")]
    key: Annotated[
        str | None, Setting("", "its API key; env:NAME reads it from the environment", UPSTREAMS, is_secret=True)
    ] = field(default=None, repr=False)
    headers: Annotated[
        dict[str, str], Setting("", "additional headers of every request to it", UPSTREAMS, is_secret=True)
    ] = field(default_factory=dict, repr=False)
    models: Annotated[
        tuple[str, ...],
        Setting(
            "", "models to request from it; `*` matches any characters", UPSTREAMS, unset="the models that it lists"
        ),
    ] = ()
    weight: Annotated[
        float,
        Setting(
            "", "share of requests, relative to other upstreams with the same model", UPSTREAMS, limits=(0.01, 1000)
        ),
    ] = 1.0
    limit: Annotated[
        int, Setting("", "concurrent requests; more are queued", UPSTREAMS, limits=(1, _CONCURRENCY_MAX))
    ] = 256  # vLLM's default max_num_seqs on most GPUs
    queue: Annotated[int, Setting("", "queued requests; more get status 429", UPSTREAMS, limits=(0, _QUEUE_MAX))] = (
        64  # as for a local model
    )
    queue_wait_s: Annotated[
        float, Setting("", "seconds that a request may be queued before status 503", UPSTREAMS, limits=(0, _DAY_S))
    ] = 60.0  # as for a local model
    first_byte_s: Annotated[
        float | None,
        Setting(
            "",
            "timeout for its first token, in seconds",
            UPSTREAMS,
            limits=(0.1, _DAY_S),
            unset="the server's --first-byte",
        ),
    ] = None
    idle_s: Annotated[
        float | None,
        Setting(
            "", "timeout between two tokens, in seconds", UPSTREAMS, limits=(0.1, _DAY_S), unset="the server's --idle"
        ),
    ] = None
    stream: Annotated[
        bool, Setting("", "it supports streaming; if not, complete replies are requested and streamed here", UPSTREAMS)
    ] = True
    speaks: Annotated[
        tuple[str, ...],
        Setting(
            "",
            "APIs besides chat that it supports (responses, messages); the others are translated",
            UPSTREAMS,
            choices="responses messages",
            unset="none",
        ),
    ] = ()
    n: Annotated[
        str,
        Setting(
            "",
            "several choices: native, forward n; each, one request per choice; auto, by the kind of server",
            UPSTREAMS,
            choices="auto native each",
        ),
    ] = "auto"
    usage: Annotated[bool, Setting("", "request usage in streams (`stream_options.include_usage`)", UPSTREAMS)] = True
    think: Annotated[
        str,
        Setting(
            "",
            "extract reasoning from the text: tags, in leading `<think>` tags; open, the opening tag is missing",
            UPSTREAMS,
            choices="no tags open",
            words={"false": "no", "true": "tags"},
        ),
    ] = "no"
    text: Annotated[
        str,
        Setting(
            "",
            "content of each chunk: delta, the new text; cumulative, all text so far",
            UPSTREAMS,
            choices="delta cumulative",
        ),
    ] = "delta"
    strict: Annotated[
        tuple[str, ...],
        Setting(
            "",
            "rule ids whose violation is an error instead of being repaired; true: all rules",
            UPSTREAMS,
            words={"true": (ALL_RULES,), "false": ()},
            unset="none",
        ),
    ] = ()
    sticky: Annotated[
        str,
        Setting(
            "",
            "which requests go to the same upstream while it is healthy, for its prompt cache",
            UPSTREAMS,
            choices="none key conversation",
        ),
    ] = "none"
    probe_s: Annotated[
        float,
        Setting("", "seconds between health probes; 0: never", UPSTREAMS, limits=(1, _DAY_S), words={"0": 0.0}),
    ] = 15.0  # an outage is detected within 30 s, and the load is negligible
    health: Annotated[
        str,
        Setting("", "path of its health endpoint, such as /health", UPSTREAMS, unset="list its models"),
    ] = ""
    ca_file: Annotated[
        Path | None, Setting("", "PEM file with CA certificates to trust", UPSTREAMS, unset="the system's")
    ] = None
    insecure: Annotated[bool, Setting("", "do not verify its certificate", UPSTREAMS)] = False
    is_dynamic: bool = False
    """Whether cluster replicas are assigned to it (`DynamicUpstreams`). Not a setting."""
