"""Settings of the server and of a Ray cluster, and `Config`: all settings together."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from welldone.config.model import ModelSettings, limit_setting
from welldone.config.settings import DAY_S, HOUR_S, SETTING, Setting, setting_group
from welldone.config.upstream import UpstreamSettings
from welldone.config.upstream import setting as upstream_setting

server_setting = setting_group(Setting, "Server")
security_setting = setting_group(Setting, "Security")
key_setting = setting_group(Setting, "Keys")
log_setting = setting_group(Setting, "Logs")
CONFIG_FILE_NAME = "welldone.toml"

_MIN_SECRET_LENGTH = 8  # shorter values are common words; the shortest key that is accepted
_WORKERS = 256  # more than the cores of any machine
_NEVER = {"-1": DAY_S, "0": DAY_S}


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Settings of the HTTP server and the gateway."""

    config: Path | None = server_setting(
        None, "TOML file with settings and models", "--config FILE", unset=f"./{CONFIG_FILE_NAME} if it exists"
    )
    host: str = server_setting(
        "127.0.0.1", "address to listen on; other than loopback, clients need an API key", "--host HOST"
    )
    port: int = server_setting(8000, "port to listen on; 0: any free port", "--port PORT", limits=(0, 65_535))
    ssl_cert_file: Path | None = server_setting(None, "PEM file with the TLS certificate", "--ssl-cert-file FILE")
    ssl_key_file: Path | None = server_setting(None, "PEM file with its private key", "--ssl-key-file FILE")
    max_loaded: int = server_setting(
        0, "models in memory at once; 0: no limit", "--max-loaded --models-max N", limits=(0, 10_000)
    )
    # Proxies time out after 60 s without data, some clients after 15 s
    keep_alive_s: float = server_setting(
        10.0,
        "seconds without data after which a stream gets an SSE keep-alive comment; 0: never",
        "--keep-alive --sse-ping-interval SECONDS",
        limits=(0.1, DAY_S),
        words=_NEVER,
    )
    early_s: float = server_setting(
        1.0,
        "seconds to delay a stream's status line, so that early errors still get an error status",
        "--early SECONDS",
        limits=(0, 60),
    )
    continuation: str = server_setting(
        "auto",
        "when a backend fails within an answer: auto, another attempt continues it where that is safe; off, it ends "
        "with an error event",
        "--continue MODE",
        choices="auto off",
    )
    # Kubernetes' terminationGracePeriodSeconds
    drain_s: float = server_setting(
        30.0, "seconds to let running requests finish at shutdown", "--drain SECONDS", limits=(0, HOUR_S)
    )
    slots: bool = server_setting(
        False,
        "enable /slots, which lists running requests",
        "--slots",
        off="--no-slots",
        llama="LLAMA_ARG_ENDPOINT_SLOTS",
    )
    no_page: bool = server_setting(
        False, "disable the web page", "--no-page --no-webui --no-ui", off="--page --webui --ui"
    )
    unknown_tools: str = server_setting(
        "auto",
        "tools that only OpenAI or Anthropic can run, such as web search: refuse the request, or ignore the tool; "
        "auto: ignore OpenAI's in Responses that the request does not force, refuse others",
        "--unknown-tools MODE",
        choices="auto refuse ignore",
    )

    upstreams: tuple[str, ...] = upstream_setting(
        (),
        "base URL of an OpenAI-compatible server to forward to, such as http://gpu:8000/v1; may be repeated",
        "--upstream URL",
    )
    upstream_key: str | None = upstream_setting(
        None,
        "API key of the --upstream servers; env:NAME reads it from the environment",
        "--upstream-key KEY",
        is_secret=True,
    )
    reasoning: str = upstream_setting(
        "auto",
        "field for reasoning; auto: the one that the client reads, by its User-Agent",
        "--reasoning-field NAME",
        choices="auto reasoning_content reasoning both",
    )
    record: Path | None = upstream_setting(
        None, "record the raw responses of upstreams, with timestamps, in this directory", "--record DIR"
    )
    report: bool = upstream_setting(False, "report repairs and timings in response headers", "--report")
    workers: int = upstream_setting(
        1, "worker processes; only without local models", "--workers N", limits=(1, _WORKERS)
    )

    api_keys: tuple[str, ...] = security_setting(
        (),
        "API keys of clients, separated by commas; env:NAME reads one from the environment",
        "--api-key KEYS",
        llama="LLAMA_API_KEY",
        is_secret=True,
    )
    api_key_file: Path | None = security_setting(None, "file with one API key per line", "--api-key-file FILE")
    keys_file: Path | None = security_setting(
        None,
        "file with named keys and their permissions, which `welldone keys add` creates and changes while the server "
        "runs",
        "--keys-file FILE",
    )
    no_api_key: bool = security_setting(False, "allow requests without a key, even on a public address", "--no-api-key")
    allowed_hosts: tuple[str, ...] = security_setting(
        (), "additional host names that are accepted in the Host header", "--allowed-hosts NAMES"
    )
    cors_origins: tuple[str, ...] = security_setting(
        (), "allowed CORS origins, such as https://chat.example; *: all", "--cors-origins ORIGINS"
    )

    # The engine needed 4.5 s and 700 MB to reject 16 MB
    body_limit_bytes: int = limit_setting(
        4 * 2**20, "maximum size of a request body", "--body-limit BYTES", limits=(1_024, 2**30)
    )
    # OpenAI accepts 25 MB of audio
    upload_limit_bytes: int = limit_setting(
        32 * 2**20, "maximum size of a file upload to an upstream", "--upload-limit BYTES", limits=(1_024, 2**30)
    )
    connections: int = limit_setting(
        1024, "concurrent requests, running and queued", "--connections N", limits=(1, 1_000_000)
    )
    # Clients send it at once; the longest round trips are below a second
    head_s: float = limit_setting(
        10.0,
        "timeout for the head of a request, and for idle connections, in seconds",
        "--head-time SECONDS",
        limits=(1, HOUR_S),
    )
    body_s: float = limit_setting(
        30.0, "timeout for the body of a request, in seconds", "--body-time SECONDS", limits=(1, HOUR_S)
    )
    first_byte_s: float = limit_setting(
        600.0,
        "timeout for the first token, in seconds; long prompts are slow",
        "--first-byte SECONDS",
        limits=(1, DAY_S),
    )
    idle_s: float = limit_setting(120.0, "timeout between two tokens, in seconds", "--idle SECONDS", limits=(1, DAY_S))
    stall_s: float = limit_setting(
        30.0,
        "a local engine that neither answers nor makes progress for so many seconds is restarted; 0: never",
        "--stall SECONDS",
        limits=(0, DAY_S),
    )
    write_s: float = limit_setting(
        30.0, "timeout for a client that does not read its stream, in seconds", "--write SECONDS", limits=(1, DAY_S)
    )
    requests_per_minute: int = limit_setting(
        0, "requests per minute and key; 0: no limit", "--requests-per-minute N", limits=(0, 10**9)
    )
    tokens_per_minute: int = limit_setting(
        0, "tokens per minute and key; 0: no limit", "--tokens-per-minute N", limits=(0, 10**12)
    )
    stored_responses: int = limit_setting(
        4_096, "responses stored for previous_response_id; 0: none", "--stored-responses N", limits=(0, 10**6)
    )
    # 16 bodies of the maximum size, or 4,096 of 16 KB, a typical size
    stored_bytes: int = limit_setting(
        64 * 2**20,
        "memory for stored responses; the oldest are evicted first",
        "--stored-bytes BYTES",
        limits=(2**20, 2**40),
    )
    # A conversation of a day; OpenAI keeps responses for 30 days
    stored_s: float = limit_setting(
        DAY_S,
        "seconds that stored responses are kept in the store of --limits-store, where other servers find them; "
        "--stored-responses and --stored-bytes limit those of a key there; 0: they are not shared",
        "--stored-time SECONDS",
        limits=(0, 30 * DAY_S),
    )
    # Tools of an agent that take longer are rare; it reconnects
    socket_idle_s: float = limit_setting(
        900.0,
        "seconds without a request after which a WebSocket is closed",
        "--socket-idle SECONDS",
        limits=(1, DAY_S),
    )
    # OpenAI's
    socket_life_s: float = limit_setting(
        3_600.0,
        "seconds after which a WebSocket accepts no further request",
        "--socket-life SECONDS",
        limits=(1, DAY_S),
    )
    # A phone that changes networks is back within seconds, a laptop that wakes up within minutes
    resume_s: float = limit_setting(
        300.0,
        "seconds that a resumable stream goes on without its client, and is kept after its end; 0: no resume",
        "--resume-time SECONDS",
        limits=(0, DAY_S),
    )
    # As many as background responses
    resume_streams: int = limit_setting(
        64, "resumable streams per key, running and ended", "--resume-streams N", limits=(1, 10**6)
    )
    # 15,000 tokens, each of which is a chunk of 250 bytes
    resume_stream_bytes: int = limit_setting(
        4 * 2**20,
        "memory for the events of one resumable stream",
        "--resume-stream-bytes BYTES",
        limits=(2**16, 2**30),
    )
    resume_bytes: int = limit_setting(
        64 * 2**20,
        "memory for all resumable streams; ended ones are evicted first",
        "--resume-bytes BYTES",
        limits=(2**20, 2**40),
    )

    log_format: str = log_setting(
        "auto",
        "format of log lines; auto: short on a terminal, otherwise text",
        "--log-format FORMAT",
        choices="auto short text json",
    )
    log_level: str = log_setting(
        "info", "minimum level of log lines", "--log-level LEVEL", choices="debug info warning error"
    )
    tracing: str = log_setting(
        "auto",
        "record OpenTelemetry spans; auto: if OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set",
        "--tracing MODE",
        choices="auto on off",
    )
    verbose: bool = log_setting(False, "also show the logs of engines", "-v --verbose --log-verbose")
    quiet: bool = log_setting(False, "log errors only", "-q --quiet --log-disable")


RELOADED_SETTINGS = frozenset(
    {"config", "upstreams", "upstream_key", "api_keys", "api_key_file", "allowed_hosts", "cors_origins", "max_loaded"}
    | {"keep_alive_s", "early_s", "continuation", "unknown_tools", "reasoning", "report"}
    | {"body_limit_bytes", "upload_limit_bytes", "body_s", "first_byte_s", "idle_s", "socket_idle_s", "socket_life_s"}
    | {"requests_per_minute", "tokens_per_minute"}
)
"""Settings of the server that a reload changes. All others need a restart."""


@dataclass(frozen=True, kw_only=True)
class LimitsSettings:
    """Settings of shared rate limits."""

    store: str | None = limit_setting(
        None,
        "Redis in which several servers share rate limits and API keys, such as redis://USER:PASSWORD@HOST:6379/0",
        "--limits-store URL",
        is_secret=True,
        unset="in memory, shared by the workers",
    )


@dataclass(frozen=True, kw_only=True)
class KeySettings:
    """A named API key with its own permissions."""

    name: str
    """Name of the TOML table; the principal in logs and limits."""

    key: str = field(
        repr=False, metadata={SETTING: Setting("Keys", "the key that clients send", is_secret=True, unset="required")}
    )
    models: tuple[str, ...] = key_setting(
        (), "allowed models, by the names that clients use; * matches any characters", unset="all"
    )
    requests_per_minute: int | None = key_setting(
        None, "requests per minute; 0: no limit", limits=(0, 10**9), unset="server.requests_per_minute"
    )
    tokens_per_minute: int | None = key_setting(
        None, "tokens per minute; 0: no limit", limits=(0, 10**12), unset="server.tokens_per_minute"
    )
    admin: bool = key_setting(False, "may see all requests on the web page, and load and unload models")
    metrics: bool = key_setting(False, "may read /metrics even if `models` restricts it")


# ---- [scale]: replicas on a Ray cluster


scale_setting = setting_group(Setting, "Scale")

_REPLICAS = 10_000  # of one kind in one cluster
_CPUS, _GPUS = 1_024, 64  # of one machine
_STREAMS = 100_000


@dataclass(frozen=True, kw_only=True)
class _ReplicaScale:
    min_replicas: int = scale_setting(1, "minimum number of replicas", limits=(1, _REPLICAS))
    max_replicas: int = scale_setting(1, "maximum number of replicas", limits=(1, _REPLICAS))
    num_cpus: float = scale_setting(1.0, "CPUs per replica", limits=(0, _CPUS))


@dataclass(frozen=True, kw_only=True)
class FrontScale(_ReplicaScale):
    """Replicas of the HTTP front end."""

    # At 30 tokens/s a front replica and Ray's proxy together use one core for 27 to 37 streams
    streams: int = scale_setting(50, "target number of streams per replica for autoscaling", limits=(1, _STREAMS))
    port: int = scale_setting(
        0,
        "port on which each front replica listens on its own node, to bypass Ray's proxy; 0: none",
        limits=(0, 65_535),
    )


@dataclass(frozen=True, kw_only=True)
class EngineScale(_ReplicaScale):
    """Replicas of a model's engine."""

    num_gpus: float = scale_setting(0.0, "GPUs per replica", limits=(0, _GPUS))
    streams: int | None = scale_setting(
        None, "target number of streams per replica for autoscaling", limits=(1, _STREAMS), unset="the model's slots"
    )
    sticky: str = scale_setting(
        "none",
        "which requests go to the same replica while it is healthy, for its prompt cache",
        choices="none key conversation",
    )


@dataclass(frozen=True, kw_only=True)
class ScaleSettings:
    """Settings of the cluster."""

    # Loading an engine takes several seconds more
    upscale_delay_s: float = scale_setting(5.0, "seconds of high load before replicas are added", limits=(0, HOUR_S))
    # Longer than the pause between two turns of a chat
    downscale_delay_s: float = scale_setting(
        120.0, "seconds of low load before replicas are removed", limits=(0, HOUR_S)
    )
    look_back_s: float = scale_setting(
        15.0, "seconds over which the load is averaged; Ray samples it every 10", limits=(1, HOUR_S)
    )
    front: FrontScale = FrontScale()
    engine: EngineScale = EngineScale()
    """Settings for models without a table of their own."""
    engines: Mapping[str, EngineScale] = field(default_factory=dict)
    """By name of the model."""

    def engine_of(self, model: str) -> EngineScale:
        """The settings of a model's engine replicas."""
        return self.engines.get(model, self.engine)


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
    is_traced: bool = False
    """Whether OpenTelemetry spans are recorded: by the setting `tracing` and the environment."""
    warnings: tuple[str, ...] = ()
    """Warnings for the user, one line each."""
    model_locations: Mapping[str, str] = field(default_factory=dict)
    """Position of each model in the config file, by name: `welldone.toml: models.large`."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that must not appear in logs, engine environments or replies."""
        secrets = [*self.server.api_keys, *(key.key for key in self.keys)]
        for upstream in self.upstreams:
            secrets += [upstream.key] if upstream.key is not None else []
            # The value of a header may be `Bearer SECRET`; short words occur in other texts by chance.
            words = [word for value in upstream.headers.values() for word in value.split()]
            secrets += [word for word in words if len(word) >= _MIN_SECRET_LENGTH]
        if self.limits.store is not None:
            password = urlsplit(self.limits.store).password or ""
            secrets += [
                word for word in (self.limits.store, password, unquote(password)) if len(word) >= _MIN_SECRET_LENGTH
            ]
        return tuple(dict.fromkeys(secrets))

    @property
    def has_stored_keys(self) -> bool:
        """Whether a key file or the shared store may contain API keys."""
        has_place = self.limits.store is not None or self.server.keys_file is not None
        return has_place and not self.server.no_api_key

    def has_keys(self, unnamed: Collection[str]) -> bool:
        """Whether clients need a key; `unnamed` are the keys without a name."""
        return bool(unnamed or self.keys or self.has_stored_keys)
