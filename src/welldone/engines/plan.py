"""How a model's engine is to be started: the program, what it is told, and where it will listen."""

import os
import re
import secrets
import socket
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import msgspec

from welldone.config import builtin_model
from welldone.config.model import ModelSettings
from welldone.engines.engine_config import EngineConfig
from welldone.engines.errors import EngineError
from welldone.engines.models import store
from welldone.engines.models.store import GgufError, GgufMetadata, read_metadata
from welldone.http.address import Address

DEFAULT_CONTEXT_LIMIT = 16384
"""Tokens of context in all slots where nobody asked for more: 4,096 for each of four. Models claim up to a million, and
each token costs memory at once: 130 KB with a model of 8 billion parameters, so 2 GB."""

EMBEDDING_CONTEXT_LIMIT = 2048
"""Tokens of a text for an embedding where the context has room for them: what llama-server reads at once."""

TEMPLATE_LIMIT_CHARS = 2**20
"""Characters of a chat template that are read; those that we know have less than 50,000."""

SOCKET_PATH_LIMIT_BYTES = 103
"""The longest path of a socket: macOS has 104 bytes for it, with the zero at its end."""

_SECRET_VARIABLE = re.compile("key|token|secret|passw|credential|auth|dsn|_pat$", re.IGNORECASE)
"""What the names of environment variables have in them that hold a secret, or lead to one, as SSH_AUTH_SOCK does."""
_URL_WITH_PASSWORD = re.compile("://[^/?#]*@")
"""A URL with a user in it, and mostly a password: of a database, a proxy, a package registry."""

PYTHON_MODULE = (sys.executable, "-P", "-m")
"""-P: a file that happens to lie in the current folder is never taken for a module."""


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that `Process` needs. With `orders`, the program says itself when it is ready; else it is asked."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    address: Address
    config_line: bytes = b""
    metadata: GgufMetadata | None = None
    """What the model's file says of itself; of a command nothing is known."""

    def __repr__(self) -> str:
        """Without orders and environment: a repr may get into a log, and there are keys in both."""
        return f"Plan({self.address})"


def make_plan(
    settings: ModelSettings, *, models_folder: Path, socket_folder: Path, environment: Mapping[str, str]
) -> LaunchPlan:
    """How to start this model now. Reads its file's header, so it takes some milliseconds; `EngineError` if it cannot.

    Each start has a socket of its own: llama.cpp cannot listen where the one before it has left its socket.
    """
    path = socket_folder / f"{secrets.token_hex(4)}.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT_BYTES:
        raise EngineError("the folder for sockets has too long a path; set TMPDIR to a shorter one", is_permanent=True)
    if settings.command:
        return _plan_command(settings, path, environment)
    return _plan_llama(settings, _find_model_file(settings, models_folder), path, environment)


def read_model_metadata(settings: ModelSettings, models_folder: Path) -> GgufMetadata | None:
    """What the model's file says of itself; None for a command, or where there is no such file."""
    if settings.command:
        return None
    try:
        return read_metadata(_find_model_file(settings, models_folder))
    except (EngineError, GgufError, OSError):
        return None  # who asks for the model is told


def fits_socket_path(folder: str) -> bool:
    """Whether the path of a socket in a new folder in this one would not be too long."""
    name = Path(folder) / "welldone-12345678" / "12345678.sock"
    return Path(folder).is_absolute() and len(os.fsencode(name)) <= SOCKET_PATH_LIMIT_BYTES


def _find_model_file(settings: ModelSettings, models_folder: Path) -> Path:
    """The model's file: a path, or one of the names that `welldone models` shows."""
    file = settings.file
    if file is not None and file.is_file():
        return file
    name = builtin_model.DEFAULT_MODEL.name if file is None else str(file)
    if (found := store.find_model_file(models_folder, name)) is not None:
        return found
    if builtin_model.is_builtin_name(name):
        raise EngineError("it is not here yet; fetch it with `welldone pull default`", is_permanent=True)
    raise EngineError(f"there is no file {Path(name).name}", is_permanent=True)


def _plan_llama(settings: ModelSettings, file: Path, socket_path: Path, environment: Mapping[str, str]) -> LaunchPlan:
    try:
        facts = read_metadata(file)
    except GgufError as error:
        raise EngineError(f"its file {file.name} {error}", is_permanent=error.is_permanent) from error
    key = secrets.token_urlsafe(32)
    orders = _build_engine_config(settings, file, facts, str(socket_path), key)
    return LaunchPlan(
        arguments=(*PYTHON_MODULE, "welldone.engines.llama_child"),
        # Threads that spin while they wait made decoding 5 to 10 times slower on a busy machine.
        # ggml would start a debugger to show where it failed: that takes seconds, and hides the reason.
        environment={"OMP_WAIT_POLICY": "passive", "GGML_NO_BACKTRACE": "1"} | _without_secrets(environment),
        address=Address(socket=str(socket_path), key=key),
        config_line=msgspec.json.encode(orders) + b"\n",
        metadata=facts,
    )


def _without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """What an engine that reads other people's files is told of ours: no keys, which it has no use for."""
    return {
        name: value
        for name, value in environment.items()
        if not (_SECRET_VARIABLE.search(name) or _URL_WITH_PASSWORD.search(value))
    }


def context_per_request(settings: ModelSettings, metadata: GgufMetadata) -> int:
    """The tokens of context that one request has."""
    own = metadata.context_length or DEFAULT_CONTEXT_LIMIT
    context = (settings.ctx_size or min(own * settings.slots, DEFAULT_CONTEXT_LIMIT)) // settings.slots
    is_embedder = settings.embeddings or settings.reranking or metadata.is_embedder or metadata.is_reranker
    if is_embedder and not settings.ctx_size:
        context = min(context, max(settings.batch_size, EMBEDDING_CONTEXT_LIMIT))
    return max(context, 1)


def _build_engine_config(
    settings: ModelSettings, file: Path, metadata: GgufMetadata, socket_path: str, key: str
) -> EngineConfig:
    context = context_per_request(settings, metadata) * settings.slots
    is_reranker = settings.reranking or metadata.is_reranker
    is_embedder = settings.embeddings or metadata.is_embedder or is_reranker
    # A model for embeddings reads a text in one go or not at all: what one slot holds.
    whole_text = context // settings.slots if is_embedder else 0
    return EngineConfig(
        name=settings.name,
        file=str(file),
        socket=socket_path,
        key=key,
        parent_pid=os.getpid(),
        start_timeout_s=settings.load_timeout_s,
        ctx_size=context,
        parallel=settings.slots,
        kv_unified=settings.kv_unified,
        gpu_layers=-1 if settings.gpu_layers is None else settings.gpu_layers,
        main_gpu=settings.main_gpu,
        split_mode=settings.split_mode,
        tensor_split=_parse_tensor_split(settings.tensor_split),
        kv_offload=settings.kv_offload,
        threads=settings.threads or 0,
        threads_batch=settings.threads_batch or 0,
        batch_size=max(settings.batch_size, whole_text),
        ubatch_size=max(settings.ubatch_size, whole_text),
        flash_attn=settings.flash_attn,
        cont_batching=settings.cont_batching,
        swa_full=settings.swa_full,
        mlock=settings.mlock,
        mmap=settings.mmap,
        warmup=settings.warmup,
        embeddings=is_embedder,
        pooling="rank" if is_reranker else _pooling(settings, metadata),
        lora=settings.lora,
        mmproj=None if settings.mmproj is None else str(settings.mmproj),
        jinja=settings.jinja,
        chat_template=_chat_template(settings, file, metadata),
        reasoning_format=settings.reasoning_format,
        cache_type_k=settings.cache_type_k,
        cache_type_v=settings.cache_type_v,
        cache_ram_mib=settings.cache_ram_mib,
        cache_reuse=settings.cache_reuse,
    )


def _pooling(settings: ModelSettings, metadata: GgufMetadata) -> str | None:
    """A model for chat says nothing about pooling, and llama.cpp would then give no embedding that OpenAI's API has."""
    if settings.pooling is None and settings.embeddings and metadata.pooling in (None, "none"):
        return "mean"
    return settings.pooling


def _parse_tensor_split(words: tuple[str, ...]) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in words)
    except ValueError:
        raise EngineError("its tensor_split should be numbers, such as 3,1", is_permanent=True) from None


def _chat_template(settings: ModelSettings, file: Path, metadata: GgufMetadata) -> str | None:
    """The chat template to use instead of the model's own."""
    if settings.chat_template is not None:
        return settings.chat_template
    if settings.chat_template_file is not None:
        return _read_template(settings.chat_template_file)
    is_builtin = (
        file.name == builtin_model.DEFAULT_MODEL.file_name
        and metadata.size_bytes == builtin_model.DEFAULT_MODEL.size_bytes
    )
    if is_builtin and builtin_model.DEFAULT_MODEL.template is not None:
        return (files("welldone.engines") / "templates" / builtin_model.DEFAULT_MODEL.template).read_text(
            encoding="utf-8"
        )
    return None


def _read_template(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(TEMPLATE_LIMIT_CHARS)
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"its chat template {path.name} cannot be read", is_permanent=True) from error


def _plan_command(settings: ModelSettings, socket_path: Path, environment: Mapping[str, str]) -> LaunchPlan:
    """A user's command, with its place filled in: a socket if it names one, else a free port."""
    words = " ".join([*settings.command, *settings.environment.values()])
    if "{socket}" in words:
        address = Address(socket=str(socket_path), key=settings.key)
    elif "{port}" in words:
        address = Address(port=_free_port(), key=settings.key)
    else:
        raise EngineError("its command names neither {port} nor {socket}", is_permanent=True)
    places = {"{socket}": str(socket_path), "{port}": str(address.port)}
    command = [_fill_placeholders(word, places) for word in settings.command]
    return LaunchPlan(
        arguments=(*PYTHON_MODULE, "welldone.engines.command_child", str(os.getpid()), *command),
        environment=dict(environment)
        | {name: _fill_placeholders(word, places) for name, word in settings.environment.items()},
        address=address,
    )


def _fill_placeholders(word: str, placeholders: Mapping[str, str]) -> str:
    for mark, place in placeholders.items():
        word = word.replace(mark, place)
    return word


def _free_port() -> int:
    """A port that was free a moment ago. If another program is faster, the engine dies and is started anew."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
