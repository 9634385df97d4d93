"""Settings of one local model. Names and flags are those of llama-server where it has them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from welldone.config import builtin_model
from welldone.config.settings import Setting

MODEL, ENGINE, ANSWERS, LIMITS = "Model", "Engine", "Answers", "Limits"

DEFAULT_SLOTS = 4
"""As llama-server: enough for batching, few enough to leave each slot a context."""

COMMAND_SLOTS = 256
"""Of an engine command without `parallel`: vLLM's default on most GPUs, as for upstreams. A server with fewer queues
the rest itself."""

LLAMA_SLOTS = 256
"""llama.cpp's limit of sequences."""

LOAD_TIMEOUT_S, COMMAND_LOAD_TIMEOUT_S = 600.0, 3600.0
"""A slow disk reads a file of 100 GB in ten minutes. A command may first download, compile, and wait for other nodes:
vLLM takes up to half an hour with the largest models."""

ALL_LAYERS = 9999
"""More layers than any model has: llama.cpp offloads all of them."""

_CACHE_TYPES = "f32 f16 bf16 q8_0 q4_0 q4_1 iq4_nl q5_0 q5_1"
_AUTO = {"-1": None, "0": None, "auto": None}
_NO_LIMIT = {"-1": None}
_INT32_MAX = 2**31 - 1  # llama.cpp stores these in 32 bits
_SLOTS_MAX = 4096  # vLLM uses 1,024 on a large GPU
_THREADS_MAX = 512  # llama.cpp's limit
_DEVICES_MAX = 16  # llama.cpp's limit
_TIB_IN_MIB = 2**20  # more is a typing mistake
_DAY_S = 86_400.0  # longer timeouts are mistakes
_QUEUE_MAX = 100_000  # each queued request holds its body and a connection


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """One model: its names, its file, and the configuration of its engine."""

    name: str
    """The id that clients use: the first `--alias`, the name of the TOML table, or the stem of the file."""

    file: Annotated[
        Path | None,
        Setting(
            "-m --model FILE",
            "GGUF file, or name of a model; the other models of the config file are not served",
            MODEL,
            unset="the built-in small model",
            is_name_or_file=True,
            is_of_one_model=True,
        ),
    ] = None
    aliases: Annotated[
        tuple[str, ...],
        Setting(
            "-a --alias NAMES",
            "names for clients, separated by commas; the first one is listed",
            MODEL,
            unset="the file's name",
            is_of_one_model=True,
        ),
    ] = ()
    command: Annotated[
        tuple[str, ...],
        Setting(
            "",
            "command that runs the engine; it must listen on `{port}` or `{socket}`",
            MODEL,
            is_secret=True,
            is_of_one_model=True,
        ),
    ] = field(default=(), repr=False)
    environment: Annotated[
        dict[str, str], Setting("", "environment variables of the command", MODEL, is_secret=True)
    ] = field(default_factory=dict, repr=False)
    key: Annotated[str | None, Setting("", "API key that the command requires", MODEL, is_secret=True)] = field(
        default=None, repr=False
    )
    mmproj: Annotated[
        Path | None,
        Setting("-mm --mmproj FILE", "multimodal projector, for images and audio", MODEL, is_of_one_model=True),
    ] = None
    lora: Annotated[
        tuple[str, ...],
        Setting("--lora FILE", "LoRA adapter files; may be repeated", MODEL, is_file=True, is_of_one_model=True),
    ] = ()
    jinja: Annotated[
        bool, Setting("--jinja", "use the model's own chat template; required for tools", MODEL, off="--no-jinja")
    ] = True
    chat_template: Annotated[
        str | None, Setting("--chat-template TEMPLATE", "chat template, or the name of one built into llama.cpp", MODEL)
    ] = None
    chat_template_file: Annotated[
        Path | None, Setting("--chat-template-file FILE", "file with a chat template", MODEL)
    ] = None
    reasoning_format: Annotated[
        str,
        Setting(
            "--reasoning-format FORMAT",
            "where reasoning goes: none leaves it in the text, the others move it to `reasoning_content`",
            MODEL,
            choices="auto none deepseek deepseek-legacy",
            llama="LLAMA_ARG_THINK",
        ),
    ] = "auto"
    embeddings: Annotated[bool, Setting("--embeddings --embedding", "enable embeddings", MODEL)] = False
    reranking: Annotated[bool, Setting("--reranking --rerank", "enable reranking", MODEL)] = False
    pooling: Annotated[
        str | None,
        Setting(
            "--pooling KIND",
            "pooling type for embeddings",
            MODEL,
            choices="none mean cls last rank",
            unset="the model's own",
        ),
    ] = None
    preload: Annotated[
        bool, Setting("--preload", "load at startup instead of on the first request; a single model always is", MODEL)
    ] = False
    idle_unload_s: Annotated[
        float,
        Setting(
            "--idle-unload --sleep-idle-seconds SECONDS",
            "unload after this many seconds without requests; 0: never",
            MODEL,
            limits=(0, None),
            words={"-1": 0.0},
        ),
    ] = 0.0
    ctx_size: Annotated[
        int,
        Setting(
            "-c --ctx-size N",
            "context size in tokens, divided among the slots; 0: the model's own per slot, at most 16384 in total",
            ENGINE,
            limits=(0, _INT32_MAX),
        ),
    ] = 0
    parallel: Annotated[
        int,
        Setting(
            "-np --parallel N",
            "slots: requests that run at once",
            ENGINE,
            limits=(1, _SLOTS_MAX),
            words={"-1": 0},
            llama="LLAMA_ARG_N_PARALLEL",
            unset="4; 1 with -c, so that a request gets the whole context; 256 for a command that does not set it",
        ),
    ] = 0
    gpu_layers: Annotated[
        int | None,
        Setting(
            "-ngl --gpu-layers --n-gpu-layers N",
            "layers to offload to the GPU: a number, `all` or `auto`",
            ENGINE,
            limits=(0, _INT32_MAX),
            words={"auto": None, "-1": None, "all": ALL_LAYERS},
            unset="auto",
            llama="LLAMA_ARG_N_GPU_LAYERS",
        ),
    ] = None
    threads: Annotated[
        int | None,
        Setting("-t --threads N", "CPU threads", ENGINE, limits=(1, _THREADS_MAX), words=_AUTO, unset="auto"),
    ] = None
    threads_batch: Annotated[
        int | None,
        Setting(
            "-tb --threads-batch N",
            "CPU threads for prompt processing",
            ENGINE,
            limits=(1, _THREADS_MAX),
            words=_AUTO,
            unset="as --threads",
        ),
    ] = None
    batch_size: Annotated[
        int,
        Setting(
            "-b --batch-size N",
            "prompt tokens processed before running answers get their next token",
            ENGINE,
            limits=(1, _INT32_MAX),
            llama="LLAMA_ARG_BATCH",
        ),
    ] = 512  # llama-server has 2048, computed 512 at a time: as fast, but stalls other answers four times as long
    ubatch_size: Annotated[
        int,
        Setting(
            "-ub --ubatch-size N",
            "tokens computed at once",
            ENGINE,
            limits=(1, _INT32_MAX),
            llama="LLAMA_ARG_UBATCH",
        ),
    ] = 512
    flash_attn: Annotated[
        str,
        Setting(
            "-fa --flash-attn on|off|auto",
            "flash attention; without a value: on",
            ENGINE,
            choices="on off auto",
            words={"true": "on", "1": "on", "false": "off", "0": "off"},
            alone="on",
        ),
    ] = "auto"
    cont_batching: Annotated[
        bool,
        Setting(
            "-cb --cont-batching",
            "continuous batching",
            ENGINE,
            off="-nocb --no-cont-batching",
        ),
    ] = True
    kv_unified: Annotated[
        bool,
        Setting(
            "-kvu --kv-unified",
            "share one context between all slots: a request that fills it ends the others with an error",
            ENGINE,
            off="-no-kvu --no-kv-unified",
        ),
    ] = False  # one client must not be able to end another's answer
    cache_type_k: Annotated[
        str, Setting("-ctk --cache-type-k TYPE", "data type of the KV cache, keys", ENGINE, choices=_CACHE_TYPES)
    ] = "f16"
    cache_type_v: Annotated[
        str, Setting("-ctv --cache-type-v TYPE", "data type of the KV cache, values", ENGINE, choices=_CACHE_TYPES)
    ] = "f16"
    cache_ram_mib: Annotated[
        int,
        Setting(
            "-cram --cache-ram MIB",
            "memory of the prompt cache, in MiB; 0: none",
            ENGINE,
            limits=(0, _TIB_IN_MIB),
        ),
    ] = 512
    cache_reuse: Annotated[
        int,
        Setting(
            "--cache-reuse N",
            "smallest chunk of a cached prompt to reuse by shifting, in tokens; 0: none",
            ENGINE,
            limits=(0, _INT32_MAX),
        ),
    ] = 0
    mlock: Annotated[bool, Setting("--mlock", "lock the model in memory, so that it is never swapped out", ENGINE)] = (
        False
    )
    mmap: Annotated[bool, Setting("--mmap", "memory-map the file instead of reading it", ENGINE, off="--no-mmap")] = (
        True
    )
    warmup: Annotated[bool, Setting("--warmup", "run the model once after loading", ENGINE, off="--no-warmup")] = True
    swa_full: Annotated[
        bool, Setting("--swa-full", "use a full-size cache for models with sliding window attention", ENGINE)
    ] = False
    kv_offload: Annotated[
        bool, Setting("-kvo --kv-offload", "keep the KV cache on the GPU", ENGINE, off="-nkvo --no-kv-offload")
    ] = True
    main_gpu: Annotated[int, Setting("-mg --main-gpu N", "main GPU", ENGINE, limits=(0, _DEVICES_MAX - 1))] = 0
    split_mode: Annotated[
        str,
        Setting(
            "-sm --split-mode MODE", "how to split a model over several GPUs", ENGINE, choices="none layer row tensor"
        ),
    ] = "layer"
    tensor_split: Annotated[
        tuple[str, ...], Setting("-ts --tensor-split SHARES", "share of each GPU, such as 3,1", ENGINE, unset="even")
    ] = ()
    start_limit_s: Annotated[
        float | None,
        Setting(
            "--start-limit SECONDS",
            "timeout for loading, in seconds",
            ENGINE,
            limits=(1, _DAY_S),
            unset=f"{LOAD_TIMEOUT_S:g}; {COMMAND_LOAD_TIMEOUT_S:g} for a command",
        ),
    ] = None
    queue: Annotated[
        int,
        Setting("--queue N", "queued requests; more get status 429", LIMITS, limits=(0, _QUEUE_MAX)),
    ] = 64
    queue_wait_s: Annotated[
        float,
        Setting(
            "--queue-wait SECONDS", "seconds that a request may be queued before status 503", LIMITS, limits=(0, _DAY_S)
        ),
    ] = 60.0

    defaults: dict[str, object] = field(default_factory=dict)
    """Defaults of request fields: those of `RequestDefaults` that are set."""

    @property
    def slots(self) -> int:
        """Requests that run at once. A configured context size belongs to one request, as with llama-server."""
        if self.command:
            return self.parallel or COMMAND_SLOTS
        return self.parallel or (1 if self.ctx_size else DEFAULT_SLOTS)

    @property
    def is_builtin(self) -> bool:
        """Whether it is the built-in model, which is downloaded if it is missing."""
        return not self.command and (self.file is None or builtin_model.is_builtin_name(str(self.file)))

    @property
    def load_timeout_s(self) -> float:
        """Timeout for loading, for an engine that hangs; one that exits is noticed at once."""
        return self.start_limit_s or (COMMAND_LOAD_TIMEOUT_S if self.command else LOAD_TIMEOUT_S)


@dataclass(frozen=True, kw_only=True)
class RequestDefaults:
    """Defaults of request fields, under the names of the API. None: the engine's default."""

    temperature: Annotated[
        float | None,
        Setting(
            "--temperature --temp X", "sampling temperature; 0: always the most likely token", ANSWERS, limits=(0, 5)
        ),
    ] = None
    top_p: Annotated[
        float | None,
        Setting(
            "--top-p X",
            "nucleus sampling: keep the most likely tokens up to this total probability",
            ANSWERS,
            limits=(0, 1),
        ),
    ] = None
    top_k: Annotated[
        int | None,
        Setting("--top-k N", "keep this many of the most likely tokens; 0: all", ANSWERS, limits=(0, _INT32_MAX)),
    ] = None
    min_p: Annotated[
        float | None,
        Setting("--min-p X", "drop tokens below this share of the highest probability", ANSWERS, limits=(0, 1)),
    ] = None
    typical_p: Annotated[
        float | None, Setting("--typical-p --typical X", "locally typical sampling; 1: off", ANSWERS, limits=(0, 1))
    ] = None
    presence_penalty: Annotated[
        float | None,
        Setting("--presence-penalty X", "penalty for tokens that occurred before", ANSWERS, limits=(-2, 2)),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        Setting("--frequency-penalty X", "penalty for tokens by how often they occurred", ANSWERS, limits=(-2, 2)),
    ] = None
    repeat_penalty: Annotated[
        float | None,
        Setting("--repeat-penalty X", "llama.cpp's repetition penalty; 1: off", ANSWERS, limits=(0.01, 10)),
    ] = None
    repeat_last_n: Annotated[
        int | None,
        Setting(
            "--repeat-last-n N",
            "tokens considered for the repetition penalty; 0: none, -1: the whole context",
            ANSWERS,
            limits=(-1, _INT32_MAX),
        ),
    ] = None
    seed: Annotated[
        int | None,
        Setting("-s --seed N", "random seed", ANSWERS, limits=(0, 2**32 - 1), words=_NO_LIMIT),
    ] = None
    max_tokens: Annotated[
        int | None,
        Setting(
            "-n --predict --n-predict N",
            "maximum tokens of an answer; -1: as many as fit",
            ANSWERS,
            limits=(1, _INT32_MAX),
            words=_NO_LIMIT,
            llama="LLAMA_ARG_N_PREDICT",
        ),
    ] = None
    thinking_budget_tokens: Annotated[
        int | None,
        Setting(
            "--reasoning-budget N",
            "maximum reasoning tokens; 0: none, -1: no limit",
            ANSWERS,
            limits=(0, _INT32_MAX),
            words=_NO_LIMIT,
            llama="LLAMA_ARG_THINK_BUDGET",
        ),
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, object] | None,
        Setting("--chat-template-kwargs JSON", "JSON object with arguments of the chat template", ANSWERS),
    ] = None
