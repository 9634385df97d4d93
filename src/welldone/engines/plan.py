"""Launch plan of an engine: program, configuration and address."""

import dataclasses
import os
import re
import secrets
import socket
from collections.abc import Collection, Mapping
from importlib.resources import files
from pathlib import Path

import msgspec

from welldone.config import builtin_model
from welldone.config.model import ModelSettings
from welldone.engines.builds import EngineChoice, choose_engine
from welldone.engines.cores import Waiting, default_threads, is_waiting_reported, thread_waiting
from welldone.engines.engine_config import NO_GPU_WARNING, PYTHON_MODULE, EngineConfig
from welldone.engines.errors import EngineError
from welldone.engines.llama_server import (
    clean_environment,
    list_devices,
    probe_server,
    selected_devices,
    server_arguments,
)
from welldone.engines.memory import Device, check_memory, estimate_memory, read_memory, weights_of
from welldone.engines.models.gguf import GgufError, GgufMetadata, read_metadata
from welldone.engines.models.repository import find_configured_model
from welldone.engines.speculation import with_speculation
from welldone.http.address import Address

DEFAULT_CONTEXT_LIMIT = 16384
"""Default context of all slots together, in tokens: 4,096 for each of four. Models support up to a million, but memory
is allocated at once: 130 KB per token with a model of 8 billion parameters, 2 GB in all."""

EMBEDDING_CONTEXT_LIMIT = 2048
"""Default limit of a text for an embedding, in tokens: llama-server's batch size."""

TEMPLATE_LIMIT_CHARS = 2**20
"""Longest chat template; known templates have less than 50,000 characters."""

SOCKET_PATH_LIMIT_BYTES = 103
"""Longest path of a Unix socket: macOS has 104 bytes (sun_path), including the terminating zero."""

FALLBACK_NOTE = "the model does not start on the engine"

_SECRET_VARIABLE = re.compile("key|token|secret|passw|credential|auth|dsn|_pat$", re.IGNORECASE)
"""Names of environment variables that contain a secret or lead to one, as SSH_AUTH_SOCK does."""
_URL_WITH_PASSWORD = re.compile("://[^/?#]*@")
"""A URL with user information, usually a password: of a database, a proxy, a package registry."""


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments, environment and address of an engine process."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    address: Address
    config_line: bytes = b""
    """Is written to standard input of `llama_child`, which then reports when it is ready. Empty for a command and for
    llama-server, which are probed over HTTP."""
    metadata: GgufMetadata | None = None
    """None for a command."""
    engine: EngineChoice | None = None
    """None for a command."""
    waiting: Waiting = Waiting.ENVIRONMENT
    """How its threads wait for each other."""
    is_watched: bool = False
    """Whether it is restarted with another `waiting` when other programs need the CPUs, or need them no more."""
    startup_files: tuple[Path, ...] = ()
    """Files that the program reads when it starts, removed as soon as it is ready: its key and chat template."""
    warnings: tuple[str, ...] = ()
    """For the server's log."""

    def __repr__(self) -> str:
        """Omit configuration and environment, which contain keys: a repr may end up in a log."""
        return f"LaunchPlan({self.address})"


def make_plan(
    settings: ModelSettings,
    *,
    models_folder: Path,
    socket_folder: Path,
    environment: Mapping[str, str],
    excluded: Collection[str] = (),
    checks_memory: bool = True,
    has_contention: bool = False,
) -> LaunchPlan:
    """Plan a start of this model. Reads the header of its file, which takes milliseconds. Raises `EngineError`.

    Every start has a new socket path: llama.cpp cannot bind to a path that a previous process has left. `excluded` are
    engines on which the model did not start. `checks_memory`: warn if the model may not fit; a restart leaves it out.
    `has_contention`: other programs were found to need the CPUs.
    """
    path = socket_folder / f"{secrets.token_hex(4)}.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT_BYTES:
        raise EngineError(
            "the path of the folder for sockets is too long; set TMPDIR to a shorter one", is_permanent=True
        )
    if settings.command:
        return _plan_command(settings, path, environment)
    file = _find_model_file(settings, models_folder)
    try:
        metadata = read_metadata(file)
    except GgufError as error:
        raise EngineError(f"its file {file.name} {error}", is_permanent=error.is_permanent) from error
    own = with_speculation(_engine_settings(settings, file, metadata), file, models_folder)
    unusable, warnings = set(excluded), list[str]()
    while True:
        engine = choose_engine(settings.engine, environment, excluded=unusable)
        computes_on_cpu = (engine.program is None or engine.is_cpu_build) and not own.needs_gpu
        is_watched = computes_on_cpu and is_waiting_reported()
        waiting = thread_waiting(environment, _threads(own), is_watched=is_watched, has_contention=has_contention)
        # GGML_NO_BACKTRACE: ggml starts a debugger on failure, which takes seconds and hides the reason.
        variables = waiting.variables | {"GGML_NO_BACKTRACE": "1"} | _without_secrets(environment)
        try:
            note = _check_memory(own, file, metadata, engine) if checks_memory else None
            if engine.program is None:
                plan = _plan_wheel(own, metadata, engine, path, variables)
            else:
                plan = _plan_server(own, metadata, engine, engine.program, path, variables)
        except EngineError as error:
            if not engine.is_automatic or engine.program is None:
                raise
            unusable.add(engine.name)
            warnings.append(fallback_warning(engine.name, error))
        else:
            warnings += plan.warnings if note is None else (*plan.warnings, note)
            return msgspec.structs.replace(plan, warnings=tuple(warnings), waiting=waiting, is_watched=is_watched)


def _check_memory(settings: ModelSettings, file: Path, metadata: GgufMetadata, engine: EngineChoice) -> str | None:
    """Check the devices and the memory; return a warning if the model may not fit. Raises `EngineError`."""
    devices: list[Device] = []
    if engine.program is not None:
        available = [] if engine.is_cpu_build else list_devices(probe_server(engine.program))
        if available is None:
            return None
        devices = selected_devices(settings, available)
    elif settings.needs_gpu:
        return None  # only its child knows whether the wheel is one for GPUs
    needed = [estimate_memory(weights_of(file, metadata), metadata.shape, settings)]
    if settings.draft_model is not None and not settings.draft_model.samefile(file):
        draft = read_metadata(settings.draft_model)
        plain = dataclasses.replace(settings, cache_type_k="f16", cache_type_v="f16")
        needed.append(estimate_memory(weights_of(settings.draft_model, draft), draft.shape, plain))
    return check_memory(settings, needed, read_memory(), devices)


def fallback_warning(engine_name: str, error: EngineError) -> str:
    """Return the log line about a build that does not work here (any more), so that another engine takes its place."""
    return f"{FALLBACK_NOTE} {engine_name}, so that it runs on the next one: {error.message}"


def read_model_metadata(settings: ModelSettings, models_folder: Path) -> GgufMetadata | None:
    """Return the metadata of the model's file; None for a command, or if the file cannot be read."""
    if settings.command:
        return None
    try:
        return read_metadata(_find_model_file(settings, models_folder))
    except (EngineError, GgufError, OSError):
        return None  # reported when the model is loaded


def fits_socket_path(folder: str) -> bool:
    """Return whether the path of a socket in a new folder within this one fits the limit."""
    name = Path(folder) / "welldone-12345678" / "12345678.sock"
    return Path(folder).is_absolute() and len(os.fsencode(name)) <= SOCKET_PATH_LIMIT_BYTES


def _find_model_file(settings: ModelSettings, models_folder: Path) -> Path:
    """Find the model's file by its path, or by its name in `welldone models`."""
    if (path := find_configured_model(models_folder, settings)) is not None:
        return path
    if settings.hf_repo is not None:
        raise EngineError(
            f"it is not downloaded yet; run `welldone pull hf:{settings.hf_repo.removeprefix('hf:')}`",
            is_permanent=True,
        )
    if settings.file is None or settings.is_builtin:
        raise EngineError("it is not downloaded yet; run `welldone pull default`", is_permanent=True)
    raise EngineError(f"there is no file {settings.file.name}", is_permanent=True)


def _plan_wheel(
    settings: ModelSettings,
    metadata: GgufMetadata,
    engine: EngineChoice,
    socket_path: Path,
    environment: Mapping[str, str],
) -> LaunchPlan:
    """Plan `llama_child` with the settings of `_engine_settings`."""
    key = secrets.token_urlsafe(32)
    config = EngineConfig(settings=settings, socket=str(socket_path), key=key, parent_pid=os.getpid())
    return LaunchPlan(
        arguments=(*PYTHON_MODULE, "welldone.engines.llama_child"),
        environment=dict(environment),
        address=Address(socket=str(socket_path), key=key),
        config_line=config.encode(),
        metadata=metadata,
        engine=engine,
    )


def _plan_server(
    settings: ModelSettings,
    metadata: GgufMetadata,
    engine: EngineChoice,
    path: Path,
    socket_path: Path,
    environment: Mapping[str, str],
) -> LaunchPlan:
    """Plan a llama-server with the settings of `_engine_settings`.

    Its key is in a file that only this user can read, and not in an argument or the environment (decision 6).
    """
    program = probe_server(path)
    key = secrets.token_urlsafe(32)
    host: tuple[str, ...] = ("--host", str(socket_path))
    address = Address(socket=str(socket_path), key=key)
    if not program.has_socket:
        address = Address(port=_free_port(), key=key)
        host = ("--host", address.host, "--port", str(address.port))
    # The template is not an argument: Linux limits these to 128 KiB.
    key_file, template_file = socket_path.with_suffix(".key"), socket_path.with_suffix(".jinja")
    contents = {key_file: key}
    if settings.chat_template is not None:
        contents[template_file] = settings.chat_template
    template = template_file if template_file in contents else None
    arguments = server_arguments(settings, program, host, key_file, template, is_cpu_only=engine.is_cpu_build)
    for file, text in contents.items():
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
            opened.write(text)
    return LaunchPlan(
        arguments=(*PYTHON_MODULE, "welldone.engines.command_child", str(os.getpid()), str(path), *arguments),
        environment=clean_environment(environment),
        address=address,
        metadata=metadata,
        engine=engine,
        startup_files=tuple(contents),
        warnings=(NO_GPU_WARNING,) if settings.needs_gpu and engine.is_cpu_build else (),
    )


def _threads(settings: ModelSettings) -> int | None:
    return max(settings.threads, settings.threads_batch or 0) if settings.threads else None


def _without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Remove secrets from the environment of an engine, which parses untrusted model files and needs none."""
    return {
        name: value
        for name, value in environment.items()
        if not (_SECRET_VARIABLE.search(name) or _URL_WITH_PASSWORD.search(value))
    }


def context_per_request(settings: ModelSettings, metadata: GgufMetadata) -> int:
    """Return the context length of one request, in tokens."""
    own = metadata.context_length or DEFAULT_CONTEXT_LIMIT
    context = (settings.ctx_size or min(own * settings.slots, DEFAULT_CONTEXT_LIMIT)) // settings.slots
    is_embedder = settings.embeddings or settings.reranking or metadata.is_embedder or metadata.is_reranker
    if is_embedder and not settings.ctx_size:
        context = min(context, max(settings.batch_size, EMBEDDING_CONTEXT_LIMIT))
    return max(context, 1)


def _engine_settings(settings: ModelSettings, file: Path, metadata: GgufMetadata) -> ModelSettings:
    """Return the settings for the child: with the values that depend on the file, and without secrets."""
    context = context_per_request(settings, metadata) * settings.slots
    is_reranker = settings.reranking or metadata.is_reranker
    is_embedder = settings.embeddings or metadata.is_embedder or is_reranker
    # llama.cpp computes an embedding in one batch or not at all: the batch must hold the context of a slot.
    text_limit = context // settings.slots if is_embedder else 0
    pooling = "rank" if is_reranker else settings.pooling
    if pooling is None and settings.embeddings and metadata.pooling in (None, "none"):
        pooling = "mean"  # for a chat model: without pooling, llama.cpp returns an embedding per token
    return dataclasses.replace(
        settings,
        file=file,
        environment={},
        key=None,
        ctx_size=context,
        parallel=settings.slots,
        threads=settings.threads or default_threads(weights_of(file, metadata)),
        batch_size=max(settings.batch_size, text_limit),
        ubatch_size=max(settings.ubatch_size, text_limit),
        embeddings=is_embedder,
        pooling=pooling,
        chat_template=_chat_template(settings, file, metadata),
    )


def _chat_template(settings: ModelSettings, file: Path, metadata: GgufMetadata) -> str | None:
    """Return the chat template that replaces the model's own, if any."""
    if settings.chat_template is not None:
        return settings.chat_template
    if settings.chat_template_file is not None:
        try:
            with settings.chat_template_file.open(encoding="utf-8") as opened:
                return opened.read(TEMPLATE_LIMIT_CHARS)
        except (OSError, UnicodeDecodeError) as error:
            text = f"its chat template {settings.chat_template_file.name} cannot be read"
            raise EngineError(text, is_permanent=True) from error
    builtin = builtin_model.DEFAULT_MODEL
    is_builtin = file.name == builtin.file_name and metadata.size_bytes == builtin.size_bytes
    if is_builtin and builtin.template is not None:
        return files("welldone.engines").joinpath("templates", builtin.template).read_text(encoding="utf-8")
    return None


def _plan_command(settings: ModelSettings, socket_path: Path, environment: Mapping[str, str]) -> LaunchPlan:
    """Plan a user's command and fill in its `{socket}` or `{port}`."""
    text = " ".join([*settings.command, *settings.environment.values()])
    if "{socket}" in text:
        address = Address(socket=str(socket_path), key=settings.key)
    elif "{port}" in text:
        address = Address(port=_free_port(), key=settings.key)
    else:
        raise EngineError("its command contains neither {port} nor {socket}", is_permanent=True)

    def fill(word: str) -> str:
        return word.replace("{socket}", str(socket_path)).replace("{port}", str(address.port))

    command = [fill(word) for word in settings.command]
    return LaunchPlan(
        arguments=(*PYTHON_MODULE, "welldone.engines.command_child", str(os.getpid()), *command),
        environment=dict(environment) | {name: fill(word) for name, word in settings.environment.items()},
        address=address,
    )


def _free_port() -> int:
    """Return a port that is free now. If another program takes it first, the engine fails and is restarted."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
