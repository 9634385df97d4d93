"""What can be set for the server, and all settings together."""

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

_MIN_SECRET_LENGTH = 8  # characters: the shortest key that is taken from others
_WORKERS = 256  # more than any machine has use for
_HOUR_S, _DAY_S = 3_600.0, 86_400.0  # who waits longer has forgotten it
_NEVER = {"-1": _DAY_S, "0": _DAY_S}


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """The server around the models."""

    config: Annotated[
        Path | None,
        Setting(
            "--config FILE",
            "a TOML file with settings and models",
            SERVER,
            unset=f"./{CONFIG_FILE_NAME} if it is there",
        ),
    ] = None
    host: Annotated[
        str, Setting("--host HOST", "address to listen on; off this machine clients need a key", SERVER)
    ] = "127.0.0.1"
    port: Annotated[
        int, Setting("--port PORT", "port to listen on; 0: any that is free", SERVER, limits=(0, 65_535))
    ] = 8000
    ssl_cert_file: Annotated[Path | None, Setting("--ssl-cert-file FILE", "certificate for TLS, as PEM", SERVER)] = None
    ssl_key_file: Annotated[Path | None, Setting("--ssl-key-file FILE", "its private key, as PEM", SERVER)] = None
    max_loaded: Annotated[
        int,
        Setting("--max-loaded --models-max N", "models in memory at once; 0: no limit", SERVER, limits=(0, 10_000)),
    ] = 0
    keep_alive_s: Annotated[
        float,
        Setting(
            "--keep-alive --sse-ping-interval SECONDS",
            "seconds of silence after which a stream gets a comment; 0: never",
            SERVER,
            limits=(0.1, _DAY_S),
            words=_NEVER,
        ),
    ] = 10.0  # proxies give up after 60 s of silence, some clients after 15 s
    early_s: Annotated[
        float,
        Setting(
            "--early SECONDS",
            "seconds that a stream's status waits for the engine, so that an error can still be one",
            SERVER,
            limits=(0, 60),
        ),
    ] = 1.0
    drain_s: Annotated[
        float, Setting("--drain SECONDS", "seconds that running requests get at the end", SERVER, limits=(0, _HOUR_S))
    ] = 30.0  # what Kubernetes gives
    slots: Annotated[
        bool,
        Setting(
            "--slots", "offer /slots, which shows what runs", SERVER, off="--no-slots", llama="LLAMA_ARG_ENDPOINT_SLOTS"
        ),
    ] = False
    no_page: Annotated[
        bool, Setting("--no-page --no-webui --no-ui", "do not offer the page", SERVER, off="--page --webui --ui")
    ] = False
    unknown_tools: Annotated[
        str,
        Setting(
            "--unknown-tools WAY",
            "what becomes of tools that only OpenAI's or Anthropic's own servers can run, such as a web search",
            SERVER,
            choices="refuse ignore",
        ),
    ] = "refuse"

    upstreams: Annotated[
        tuple[str, ...],
        Setting(
            "--upstream URL",
            "a server of OpenAI's API to put welldone in front of, such as http://gpu:8000/v1; may be repeated",
            UPSTREAMS,
        ),
    ] = ()
    upstream_key: Annotated[
        str | None,
        Setting(
            "--upstream-key KEY",
            "the key that the servers of --upstream want; env:NAME takes it from the environment",
            UPSTREAMS,
            is_secret=True,
        ),
    ] = field(default=None, repr=False)
    reasoning: Annotated[
        str,
        Setting(
            "--reasoning-field NAME",
            "the field that thoughts are sent in; auto: the one that the client is known to read",
            UPSTREAMS,
            choices="auto reasoning_content reasoning both",
        ),
    ] = "auto"
    record: Annotated[
        Path | None,
        Setting("--record DIR", "write what upstreams send, byte for byte and timed, into this folder", UPSTREAMS),
    ] = None
    report: Annotated[
        bool,
        Setting("--report", "tell clients what was mended and what took how long, in headers of the reply", UPSTREAMS),
    ] = False
    workers: Annotated[
        int,
        Setting("--workers N", "processes that share the work; for upstreams only", UPSTREAMS, limits=(1, _WORKERS)),
    ] = 1

    api_keys: Annotated[
        tuple[str, ...],
        Setting(
            "--api-key KEYS",
            "keys that clients must send one of, separated by commas; env:NAME takes it from the environment",
            SECURITY,
            llama="LLAMA_API_KEY",
            is_secret=True,
        ),
    ] = field(default=(), repr=False)
    api_key_file: Annotated[Path | None, Setting("--api-key-file FILE", "a file with a key on each line", SECURITY)] = (
        None
    )
    no_api_key: Annotated[
        bool, Setting("--no-api-key", "let everybody in, also on an address that others can reach", SECURITY)
    ] = False
    allowed_hosts: Annotated[
        tuple[str, ...],
        Setting("--allowed-hosts NAMES", "names that clients may call this server by, besides its own", SECURITY),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        Setting(
            "--cors-origins ORIGINS",
            "pages that may ask from a browser, such as https://chat.example; *: all",
            SECURITY,
        ),
    ] = ()

    body_limit_bytes: Annotated[
        int, Setting("--body-limit BYTES", "longest request body", LIMITS, limits=(1_024, 2**30))
    ] = 4 * 2**20  # 16 MB took the engine 4.5 s and 700 MB before it said no
    upload_limit_bytes: Annotated[
        int, Setting("--upload-limit BYTES", "longest upload of a file to an upstream", LIMITS, limits=(1_024, 2**30))
    ] = 32 * 2**20  # OpenAI takes 25 MB of audio
    connections: Annotated[
        int,
        Setting("--connections N", "requests at once, running and waiting", LIMITS, limits=(1, 1_000_000)),
    ] = 1024
    head_s: Annotated[
        float,
        Setting(
            "--head-time SECONDS",
            "seconds to send the head of a request; a connection without one is kept for so long",
            LIMITS,
            limits=(1, _HOUR_S),
        ),
    ] = 10.0  # clients send it at once, and those on the other side of the world within a second
    body_s: Annotated[
        float, Setting("--body-time SECONDS", "seconds to send the body of a request", LIMITS, limits=(1, _HOUR_S))
    ] = 30.0
    first_byte_s: Annotated[
        float,
        Setting(
            "--first-byte SECONDS", "seconds to the first token; long prompts are slow", LIMITS, limits=(1, _DAY_S)
        ),
    ] = 600.0
    idle_s: Annotated[
        float, Setting("--idle SECONDS", "seconds from one token to the next", LIMITS, limits=(1, _DAY_S))
    ] = 120.0
    write_s: Annotated[
        float,
        Setting("--write SECONDS", "seconds that a client may leave its stream unread", LIMITS, limits=(1, _DAY_S)),
    ] = 30.0
    requests_per_minute: Annotated[
        int, Setting("--requests-per-minute N", "requests of each key; 0: no limit", LIMITS, limits=(0, 10**9))
    ] = 0
    tokens_per_minute: Annotated[
        int, Setting("--tokens-per-minute N", "tokens of each key; 0: no limit", LIMITS, limits=(0, 10**12))
    ] = 0
    stored_responses: Annotated[
        int,
        Setting(
            "--stored-responses N",
            "responses that are kept, for clients to go on from; 0: none",
            LIMITS,
            limits=(0, 10**6),
        ),
    ] = 4_096
    stored_bytes: Annotated[
        int,
        Setting(
            "--stored-bytes BYTES",
            "memory for responses that are kept; the oldest go first",
            LIMITS,
            limits=(2**20, 2**40),
        ),
    ] = 64 * 2**20  # some 16 bodies of the longest kind, or 4,096 of 16 KB, as most are

    log_format: Annotated[
        str, Setting("--log-format FORMAT", "lines for people or for programs", LOGS, choices="text json")
    ] = "text"
    log_level: Annotated[
        str, Setting("--log-level LEVEL", "the least that is logged", LOGS, choices="debug info warning error")
    ] = "info"
    verbose: Annotated[bool, Setting("-v --verbose --log-verbose", "show the engines' own log too", LOGS)] = False
    quiet: Annotated[bool, Setting("-q --quiet --log-disable", "log errors only", LOGS)] = False


@dataclass(frozen=True, kw_only=True)
class LimitsSettings:
    """Where limits are counted."""

    store: Annotated[
        str | None,
        Setting(
            "--limits-store URL",
            "a Redis in which several servers count together, and which has keys for all of them, such as "
            "redis://USER:PASSWORD@HOST:6379/0",
            LIMITS,
            is_secret=True,
            unset="this process, or its workers together",
        ),
    ] = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class KeySettings:
    """A key with a name and rights of its own."""

    name: str
    """What logs and limits call who has it: the name of the TOML table."""

    key: Annotated[str, Setting("", "the key, as clients send it", KEYS, is_secret=True, unset="must be given")] = (
        field(repr=False)
    )
    models: Annotated[
        tuple[str, ...],
        Setting(
            "", "the models that it may use, by the names that clients say; * stands for any part", KEYS, unset="all"
        ),
    ] = ()
    requests_per_minute: Annotated[
        int | None,
        Setting("", "its requests; 0: no limit", KEYS, limits=(0, 10**9), unset="server.requests_per_minute"),
    ] = None
    tokens_per_minute: Annotated[
        int | None,
        Setting("", "its tokens; 0: no limit", KEYS, limits=(0, 10**12), unset="server.tokens_per_minute"),
    ] = None
    admin: Annotated[bool, Setting("", "it may see the whole server on the page, and load and unload models", KEYS)] = (
        False
    )
    metrics: Annotated[bool, Setting("", "it may read /metrics although it is for some models only", KEYS)] = False


@dataclass(frozen=True, kw_only=True)
class Config:
    """All that the user wants."""

    server: ServeSettings
    models: tuple[ModelSettings, ...]
    upstreams: tuple[UpstreamSettings, ...] = ()
    routes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What a name that clients say stands for: `model@upstream`, one or several."""
    keys: tuple[KeySettings, ...] = ()
    limits: LimitsSettings = LimitsSettings()
    scale: ScaleSettings = field(default_factory=ScaleSettings)
    warnings: tuple[str, ...] = ()
    """What the user should know about it, a line each."""
    model_locations: Mapping[str, str] = field(default_factory=dict)
    """Where models of a file stand in it, by their names: `welldone.toml: models.large`."""
    upstream_locations: Mapping[str, str] = field(default_factory=dict)
    """Where upstreams were written, by their names: `welldone.toml: upstreams.lab`, `--upstream`."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """What these settings hold that no log, no engine and no client may see."""
        found = [*self.server.api_keys, *(key.key for key in self.keys)]
        for upstream in self.upstreams:
            found += [upstream.key] if upstream.key is not None else []
            # A header may say `Bearer` before its secret; and a short word stands by chance in many a text.
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
        """Whether there are keys in a store too, for all servers that use it."""
        return self.limits.store is not None and not self.server.no_api_key

    def has_keys(self, unnamed: Collection[str]) -> bool:
        """Whether clients need a key, where these are the ones without a name."""
        return bool(unnamed or self.keys or self.has_shared_keys)

    def as_public(self) -> dict[str, object]:
        """All settings without secrets, as JSON has them."""
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
