"""Settings of the server, and `Config`: all settings together."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

from welldone.config.cluster import ScaleSettings
from welldone.config.model import LIMITS, ModelSettings
from welldone.config.settings import Setting, public_settings
from welldone.config.upstream import UPSTREAMS, UpstreamSettings

SERVER, SECURITY, KEYS, LOGS = "Server", "Security", "Keys", "Logs"
CONFIG_FILE_NAME = "welldone.toml"

_MIN_SECRET_LENGTH = 8  # shorter values are common words; the shortest key that is accepted
_WORKERS = 256  # more than the cores of any machine
_HOUR_S, _DAY_S = 3_600.0, 86_400.0  # longer timeouts are mistakes
_NEVER = {"-1": _DAY_S, "0": _DAY_S}


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Settings of the HTTP server and the gateway."""

    config: Annotated[
        Path | None,
        Setting(
            "--config FILE",
            "TOML file with settings and models",
            SERVER,
            unset=f"./{CONFIG_FILE_NAME} if it exists",
        ),
    ] = None
    host: Annotated[
        str, Setting("--host HOST", "address to listen on; other than loopback, clients need an API key", SERVER)
    ] = "127.0.0.1"
    port: Annotated[int, Setting("--port PORT", "port to listen on; 0: any free port", SERVER, limits=(0, 65_535))] = (
        8000
    )
    ssl_cert_file: Annotated[
        Path | None, Setting("--ssl-cert-file FILE", "PEM file with the TLS certificate", SERVER)
    ] = None
    ssl_key_file: Annotated[Path | None, Setting("--ssl-key-file FILE", "PEM file with its private key", SERVER)] = None
    max_loaded: Annotated[
        int,
        Setting("--max-loaded --models-max N", "models in memory at once; 0: no limit", SERVER, limits=(0, 10_000)),
    ] = 0
    keep_alive_s: Annotated[
        float,
        Setting(
            "--keep-alive --sse-ping-interval SECONDS",
            "seconds without data after which a stream gets an SSE keep-alive comment; 0: never",
            SERVER,
            limits=(0.1, _DAY_S),
            words=_NEVER,
        ),
    ] = 10.0  # proxies time out after 60 s without data, some clients after 15 s
    early_s: Annotated[
        float,
        Setting(
            "--early SECONDS",
            "seconds to delay a stream's status line, so that early errors still get an error status",
            SERVER,
            limits=(0, 60),
        ),
    ] = 1.0
    drain_s: Annotated[
        float,
        Setting("--drain SECONDS", "seconds to let running requests finish at shutdown", SERVER, limits=(0, _HOUR_S)),
    ] = 30.0  # Kubernetes' terminationGracePeriodSeconds
    slots: Annotated[
        bool,
        Setting(
            "--slots",
            "enable /slots, which lists running requests",
            SERVER,
            off="--no-slots",
            llama="LLAMA_ARG_ENDPOINT_SLOTS",
        ),
    ] = False
    no_page: Annotated[
        bool, Setting("--no-page --no-webui --no-ui", "disable the web page", SERVER, off="--page --webui --ui")
    ] = False
    unknown_tools: Annotated[
        str,
        Setting(
            "--unknown-tools MODE",
            "tools that only OpenAI or Anthropic can run, such as web search: refuse the request, or ignore the tool",
            SERVER,
            choices="refuse ignore",
        ),
    ] = "refuse"

    upstreams: Annotated[
        tuple[str, ...],
        Setting(
            "--upstream URL",
            "base URL of an OpenAI-compatible server to forward to, such as http://gpu:8000/v1; may be repeated",
            UPSTREAMS,
        ),
    ] = ()
    upstream_key: Annotated[
        str | None,
        Setting(
            "--upstream-key KEY",
            "API key of the --upstream servers; env:NAME reads it from the environment",
            UPSTREAMS,
            is_secret=True,
        ),
    ] = field(default=None, repr=False)
    reasoning: Annotated[
        str,
        Setting(
            "--reasoning-field NAME",
            "field for reasoning; auto: the one that the client reads, by its User-Agent",
            UPSTREAMS,
            choices="auto reasoning_content reasoning both",
        ),
    ] = "auto"
    record: Annotated[
        Path | None,
        Setting("--record DIR", "record the raw responses of upstreams, with timestamps, in this directory", UPSTREAMS),
    ] = None
    report: Annotated[
        bool,
        Setting("--report", "report repairs and timings in response headers", UPSTREAMS),
    ] = False
    workers: Annotated[
        int,
        Setting("--workers N", "worker processes; only without local models", UPSTREAMS, limits=(1, _WORKERS)),
    ] = 1

    api_keys: Annotated[
        tuple[str, ...],
        Setting(
            "--api-key KEYS",
            "API keys of clients, separated by commas; env:NAME reads one from the environment",
            SECURITY,
            llama="LLAMA_API_KEY",
            is_secret=True,
        ),
    ] = field(default=(), repr=False)
    api_key_file: Annotated[Path | None, Setting("--api-key-file FILE", "file with one API key per line", SECURITY)] = (
        None
    )
    no_api_key: Annotated[
        bool, Setting("--no-api-key", "allow requests without a key, even on a public address", SECURITY)
    ] = False
    allowed_hosts: Annotated[
        tuple[str, ...],
        Setting("--allowed-hosts NAMES", "additional host names that are accepted in the Host header", SECURITY),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        Setting(
            "--cors-origins ORIGINS",
            "allowed CORS origins, such as https://chat.example; *: all",
            SECURITY,
        ),
    ] = ()

    body_limit_bytes: Annotated[
        int, Setting("--body-limit BYTES", "maximum size of a request body", LIMITS, limits=(1_024, 2**30))
    ] = 4 * 2**20  # the engine needed 4.5 s and 700 MB to reject 16 MB
    upload_limit_bytes: Annotated[
        int,
        Setting("--upload-limit BYTES", "maximum size of a file upload to an upstream", LIMITS, limits=(1_024, 2**30)),
    ] = 32 * 2**20  # OpenAI accepts 25 MB of audio
    connections: Annotated[
        int,
        Setting("--connections N", "concurrent requests, running and queued", LIMITS, limits=(1, 1_000_000)),
    ] = 1024
    head_s: Annotated[
        float,
        Setting(
            "--head-time SECONDS",
            "timeout for the head of a request, and for idle connections, in seconds",
            LIMITS,
            limits=(1, _HOUR_S),
        ),
    ] = 10.0  # clients send it at once; the longest round trips are below a second
    body_s: Annotated[
        float,
        Setting("--body-time SECONDS", "timeout for the body of a request, in seconds", LIMITS, limits=(1, _HOUR_S)),
    ] = 30.0
    first_byte_s: Annotated[
        float,
        Setting(
            "--first-byte SECONDS",
            "timeout for the first token, in seconds; long prompts are slow",
            LIMITS,
            limits=(1, _DAY_S),
        ),
    ] = 600.0
    idle_s: Annotated[
        float, Setting("--idle SECONDS", "timeout between two tokens, in seconds", LIMITS, limits=(1, _DAY_S))
    ] = 120.0
    write_s: Annotated[
        float,
        Setting(
            "--write SECONDS",
            "timeout for a client that does not read its stream, in seconds",
            LIMITS,
            limits=(1, _DAY_S),
        ),
    ] = 30.0
    requests_per_minute: Annotated[
        int, Setting("--requests-per-minute N", "requests per minute and key; 0: no limit", LIMITS, limits=(0, 10**9))
    ] = 0
    tokens_per_minute: Annotated[
        int, Setting("--tokens-per-minute N", "tokens per minute and key; 0: no limit", LIMITS, limits=(0, 10**12))
    ] = 0
    stored_responses: Annotated[
        int,
        Setting(
            "--stored-responses N",
            "responses stored for previous_response_id; 0: none",
            LIMITS,
            limits=(0, 10**6),
        ),
    ] = 4_096
    stored_bytes: Annotated[
        int,
        Setting(
            "--stored-bytes BYTES",
            "memory for stored responses; the oldest are evicted first",
            LIMITS,
            limits=(2**20, 2**40),
        ),
    ] = 64 * 2**20  # 16 bodies of the maximum size, or 4,096 of 16 KB, a typical size

    log_format: Annotated[str, Setting("--log-format FORMAT", "format of log lines", LOGS, choices="text json")] = (
        "text"
    )
    log_level: Annotated[
        str, Setting("--log-level LEVEL", "minimum level of log lines", LOGS, choices="debug info warning error")
    ] = "info"
    verbose: Annotated[bool, Setting("-v --verbose --log-verbose", "also show the logs of engines", LOGS)] = False
    quiet: Annotated[bool, Setting("-q --quiet --log-disable", "log errors only", LOGS)] = False


@dataclass(frozen=True, kw_only=True)
class LimitsSettings:
    """Settings of shared rate limits."""

    store: Annotated[
        str | None,
        Setting(
            "--limits-store URL",
            "Redis in which several servers share rate limits and API keys, such as redis://USER:PASSWORD@HOST:6379/0",
            LIMITS,
            is_secret=True,
            unset="in memory, shared by the workers",
        ),
    ] = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class KeySettings:
    """A named API key with its own permissions."""

    name: str
    """Name of the TOML table; the principal in logs and limits."""

    key: Annotated[str, Setting("", "the key that clients send", KEYS, is_secret=True, unset="required")] = field(
        repr=False
    )
    models: Annotated[
        tuple[str, ...],
        Setting("", "allowed models, by the names that clients use; * matches any characters", KEYS, unset="all"),
    ] = ()
    requests_per_minute: Annotated[
        int | None,
        Setting("", "requests per minute; 0: no limit", KEYS, limits=(0, 10**9), unset="server.requests_per_minute"),
    ] = None
    tokens_per_minute: Annotated[
        int | None,
        Setting("", "tokens per minute; 0: no limit", KEYS, limits=(0, 10**12), unset="server.tokens_per_minute"),
    ] = None
    admin: Annotated[bool, Setting("", "may see all requests on the web page, and load and unload models", KEYS)] = (
        False
    )
    metrics: Annotated[bool, Setting("", "may read /metrics even if `models` restricts it", KEYS)] = False


@dataclass(frozen=True, kw_only=True)
class Config:
    """The complete configuration."""

    server: ServeSettings
    models: tuple[ModelSettings, ...]
    upstreams: tuple[UpstreamSettings, ...] = ()
    routes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Targets by model name: `model@upstream`, one or several."""
    keys: tuple[KeySettings, ...] = ()
    limits: LimitsSettings = LimitsSettings()
    scale: ScaleSettings = field(default_factory=ScaleSettings)
    warnings: tuple[str, ...] = ()
    """Warnings for the user, one line each."""
    model_locations: Mapping[str, str] = field(default_factory=dict)
    """Position of each model in the config file, by name: `welldone.toml: models.large`."""
    upstream_locations: Mapping[str, str] = field(default_factory=dict)
    """Origin of each upstream, by name: `welldone.toml: upstreams.lab`, `--upstream`."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that must not appear in logs, engine environments or replies."""
        found = [*self.server.api_keys, *(key.key for key in self.keys)]
        for upstream in self.upstreams:
            found += [upstream.key] if upstream.key is not None else []
            # The value of a header may be `Bearer SECRET`; short words occur in other texts by chance.
            words = [word for value in upstream.headers.values() for word in value.split()]
            found += [word for word in words if len(word) >= _MIN_SECRET_LENGTH]
        if self.limits.store is not None:
            password = urlsplit(self.limits.store).password or ""
            found += [
                word for word in (self.limits.store, password, unquote(password)) if len(word) >= _MIN_SECRET_LENGTH
            ]
        return tuple(dict.fromkeys(found))

    @property
    def has_shared_keys(self) -> bool:
        """Whether the shared store may contain API keys."""
        return self.limits.store is not None and not self.server.no_api_key

    def has_keys(self, unnamed: Collection[str]) -> bool:
        """Whether clients need a key; `unnamed` are the keys without a name."""
        return bool(unnamed or self.keys or self.has_shared_keys)

    def as_public(self) -> dict[str, object]:
        """All settings as JSON values, without secrets."""
        models = [{"name": model.name, **public_settings(model), "defaults": model.defaults} for model in self.models]
        upstreams = [{"name": upstream.name, **public_settings(upstream)} for upstream in self.upstreams]
        keys = [{"name": key.name, **public_settings(key)} for key in self.keys]
        routes = {name: list(targets) for name, targets in self.routes.items()}
        scale = self.scale
        return {
            "server": public_settings(self.server),
            "models": models,
            "upstreams": upstreams,
            "routes": routes,
            "keys": keys,
            "limits": public_settings(self.limits),
            "scale": {
                **public_settings(scale),
                "front": public_settings(scale.front),
                "engine": public_settings(scale.engine),
                "engines": {name: public_settings(engine) for name, engine in scale.engines.items()},
            },
        }
