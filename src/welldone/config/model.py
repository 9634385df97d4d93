"""What can be set for one model. The names and flags are llama-server's where it has them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from welldone.config import builtin_model
from welldone.config.settings import Setting

MODEL, ENGINE, ANSWERS, LIMITS = "Model", "Engine", "Answers", "Limits"

DEFAULT_SLOTS = 4
"""As llama-server has it: enough to batch, few enough to leave each a context."""

COMMAND_SLOTS = 256
"""Of a command that does not say how many it has: as of an upstream, what vLLM takes up at once on most GPUs. A server
that takes fewer lets the rest wait by itself."""

LLAMA_SLOTS = 256
"""llama.cpp's own limit of sequences."""

LOAD_TIMEOUT_S, COMMAND_LOAD_TIMEOUT_S = 600.0, 3600.0
"""A file of 100 GB is read in ten minutes from a slow disk. A command may first fetch it, compile it, and wait for
other machines: vLLM takes up to half an hour with the largest models."""

ALL_LAYERS = 9999
"""More layers than any model has: llama.cpp puts all of them on the GPU."""

_CACHE_TYPES = "f32 f16 bf16 q8_0 q4_0 q4_1 iq4_nl q5_0 q5_1"
_AUTO = {"-1": None, "0": None, "auto": None}
_NO_LIMIT = {"-1": None}
_INT32_MAX = 2**31 - 1  # llama.cpp keeps such numbers in 32 bits
_SLOTS_MAX = 4096  # vLLM takes 1,024 on a large GPU; who wants more starts another
_THREADS_MAX = 512  # llama.cpp's own limit
_DEVICES_MAX = 16  # llama.cpp's own limit
_TIB_IN_MIB = 2**20  # more is a slip of the finger
_DAY_S = 86_400.0  # who waits longer has forgotten it
_QUEUE_MAX = 100_000  # each waiting request keeps its body and a connection


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """One model: what it is called, where it comes from, and how its engine is started."""

    name: str
    """The id that clients use: the first `--alias`, the name of the TOML table, or the file's name without its end."""

    file: Annotated[
        Path | None,
        Setting(
            "-m --model FILE",
            "a GGUF file, or the name of a model; of the config file's models only this is served",
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
            "names for clients, separated by commas; the first is the one that is listed",
            MODEL,
            unset="the file's name",
            is_of_one_model=True,
        ),
    ] = ()
    command: Annotated[
        tuple[str, ...],
        Setting(
            "",
            "a command to start as the engine; it listens on `{port}` or `{socket}`",
            MODEL,
            is_secret=True,
            is_of_one_model=True,
        ),
    ] = field(default=(), repr=False)
    environment: Annotated[
        dict[str, str], Setting("", "environment variables of the command", MODEL, is_secret=True)
    ] = field(default_factory=dict, repr=False)
    key: Annotated[
        str | None, Setting("", "the API key that the command wants from its clients", MODEL, is_secret=True)
    ] = field(default=None, repr=False)
    mmproj: Annotated[
        Path | None,
        Setting("-mm --mmproj FILE", "the projector with which it sees or hears", MODEL, is_of_one_model=True),
    ] = None
    lora: Annotated[
        tuple[str, ...],
        Setting("--lora FILE", "LoRA adapter files; may be repeated", MODEL, is_file=True, is_of_one_model=True),
    ] = ()
    jinja: Annotated[
        bool, Setting("--jinja", "use the model's own chat template; tools need it", MODEL, off="--no-jinja")
    ] = True
    chat_template: Annotated[
        str | None, Setting("--chat-template TEMPLATE", "a chat template, or the name of one that llama.cpp has", MODEL)
    ] = None
    chat_template_file: Annotated[
        Path | None, Setting("--chat-template-file FILE", "a file with a chat template", MODEL)
    ] = None
    reasoning_format: Annotated[
        str,
        Setting(
            "--reasoning-format FORMAT",
            "where thoughts go: none leaves them in the text, else they are `reasoning_content`",
            MODEL,
            choices="auto none deepseek deepseek-legacy",
            llama="LLAMA_ARG_THINK",
        ),
    ] = "auto"
    embeddings: Annotated[bool, Setting("--embeddings --embedding", "offer embeddings", MODEL)] = False
    reranking: Annotated[bool, Setting("--reranking --rerank", "offer reranking", MODEL)] = False
    pooling: Annotated[
        str | None,
        Setting(
            "--pooling KIND",
            "how the embeddings of tokens become one",
            MODEL,
            choices="none mean cls last rank",
            unset="the model's own",
        ),
    ] = None
    preload: Annotated[
        bool, Setting("--preload", "load at the start, not on the first request; a single model always is", MODEL)
    ] = False
    idle_unload_s: Annotated[
        float,
        Setting(
            "--idle-unload --sleep-idle-seconds SECONDS",
            "unload after so many seconds without a request; 0: never",
            MODEL,
            limits=(0, None),
            words={"-1": 0.0},
        ),
    ] = 0.0
    ctx_size: Annotated[
        int,
        Setting(
            "-c --ctx-size N",
            "tokens of context, shared out among the slots; 0: the model's own for each, at most 16384 in all",
            ENGINE,
            limits=(0, _INT32_MAX),
        ),
    ] = 0
    parallel: Annotated[
        int,
        Setting(
            "-np --parallel N",
            "slots: requests that are answered at once",
            ENGINE,
            limits=(1, _SLOTS_MAX),
            words={"-1": 0},
            llama="LLAMA_ARG_N_PARALLEL",
            unset="4; with -c 1, so that a request has all of it; of a command what it says, else 256",
        ),
    ] = 0
    gpu_layers: Annotated[
        int | None,
        Setting(
            "-ngl --gpu-layers --n-gpu-layers N",
            "layers to keep on the GPU: a number, `all` or `auto`",
            ENGINE,
            limits=(0, _INT32_MAX),
            words={"auto": None, "-1": None, "all": ALL_LAYERS},
            unset="auto",
            llama="LLAMA_ARG_N_GPU_LAYERS",
        ),
    ] = None
    threads: Annotated[
        int | None,
        Setting("-t --threads N", "processor threads", ENGINE, limits=(1, _THREADS_MAX), words=_AUTO, unset="auto"),
    ] = None
    threads_batch: Annotated[
        int | None,
        Setting(
            "-tb --threads-batch N",
            "processor threads that read prompts",
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
            "tokens of prompts that are read before those who write get their next token",
            ENGINE,
            limits=(1, _INT32_MAX),
            llama="LLAMA_ARG_BATCH",
        ),
    ] = 512  # llama-server has 2048, computed 512 at a time: as fast, but other answers stand still four times as long
    ubatch_size: Annotated[
        int,
        Setting(
            "-ub --ubatch-size N",
            "tokens that the engine computes at once",
            ENGINE,
            limits=(1, _INT32_MAX),
            llama="LLAMA_ARG_UBATCH",
        ),
    ] = 512
    flash_attn: Annotated[
        str,
        Setting(
            "-fa --flash-attn on|off|auto",
            "flash attention; the flag alone means on",
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
            "let requests join and leave a batch while it runs",
            ENGINE,
            off="-nocb --no-cont-batching",
        ),
    ] = True
    kv_unified: Annotated[
        bool,
        Setting(
            "-kvu --kv-unified",
            "let the slots share one context: a request may fill it, and then ends the others with an error",
            ENGINE,
            off="-no-kvu --no-kv-unified",
        ),
    ] = False  # one client must not be able to end the answer of another
    cache_type_k: Annotated[
        str, Setting("-ctk --cache-type-k TYPE", "type of the cache's keys", ENGINE, choices=_CACHE_TYPES)
    ] = "f16"
    cache_type_v: Annotated[
        str, Setting("-ctv --cache-type-v TYPE", "type of the cache's values", ENGINE, choices=_CACHE_TYPES)
    ] = "f16"
    cache_ram_mib: Annotated[
        int,
        Setting(
            "-cram --cache-ram MIB",
            "memory for prompts that may come again, in MiB; 0: none",
            ENGINE,
            limits=(0, _TIB_IN_MIB),
        ),
    ] = 512
    cache_reuse: Annotated[
        int,
        Setting(
            "--cache-reuse N",
            "smallest piece of an old prompt that is moved to be used again; 0: none is",
            ENGINE,
            limits=(0, _INT32_MAX),
        ),
    ] = 0
    mlock: Annotated[bool, Setting("--mlock", "keep the model in memory, never swapped out", ENGINE)] = False
    mmap: Annotated[
        bool, Setting("--mmap", "map the file into memory instead of reading it", ENGINE, off="--no-mmap")
    ] = True
    warmup: Annotated[bool, Setting("--warmup", "run the model once when it is loaded", ENGINE, off="--no-warmup")] = (
        True
    )
    swa_full: Annotated[bool, Setting("--swa-full", "a full cache also for models with sliding windows", ENGINE)] = (
        False
    )
    kv_offload: Annotated[
        bool, Setting("-kvo --kv-offload", "keep the cache on the GPU", ENGINE, off="-nkvo --no-kv-offload")
    ] = True
    main_gpu: Annotated[
        int, Setting("-mg --main-gpu N", "the GPU to use first", ENGINE, limits=(0, _DEVICES_MAX - 1))
    ] = 0
    split_mode: Annotated[
        str,
        Setting(
            "-sm --split-mode MODE", "how a model is spread over several GPUs", ENGINE, choices="none layer row tensor"
        ),
    ] = "layer"
    tensor_split: Annotated[
        tuple[str, ...], Setting("-ts --tensor-split SHARES", "shares of the GPUs, such as 3,1", ENGINE, unset="even")
    ] = ()
    start_limit_s: Annotated[
        float | None,
        Setting(
            "--start-limit SECONDS",
            "seconds that loading may take",
            ENGINE,
            limits=(1, _DAY_S),
            unset=f"{LOAD_TIMEOUT_S:g}; of a command {COMMAND_LOAD_TIMEOUT_S:g}",
        ),
    ] = None
    queue: Annotated[
        int,
        Setting("--queue N", "requests that may wait for a slot; more get status 429", LIMITS, limits=(0, _QUEUE_MAX)),
    ] = 64
    queue_wait_s: Annotated[
        float,
        Setting("--queue-wait SECONDS", "seconds to wait for a slot before status 503", LIMITS, limits=(0, _DAY_S)),
    ] = 60.0

    defaults: dict[str, object] = field(default_factory=dict)
    """Fields of a request that are used where the request is silent: those of `Defaults` that are set."""

    @property
    def slots(self) -> int:
        """Requests that are answered at once. Who asks for a context means it for a request, as with llama-server."""
        if self.command:
            return self.parallel or COMMAND_SLOTS
        return self.parallel or (1 if self.ctx_size else DEFAULT_SLOTS)

    @property
    def is_builtin(self) -> bool:
        """Whether it is the small model that is fetched where it is not there."""
        return not self.command and (self.file is None or builtin_model.is_builtin_name(str(self.file)))

    @property
    def load_timeout_s(self) -> float:
        """How long loading may take. Who has ended is noticed at once; this is for one that stands still."""
        return self.start_limit_s or (COMMAND_LOAD_TIMEOUT_S if self.command else LOAD_TIMEOUT_S)


@dataclass(frozen=True, kw_only=True)
class RequestDefaults:
    """What is used where a request is silent, under the names that requests have. None: the engine's own."""

    temperature: Annotated[
        float | None,
        Setting(
            "--temperature --temp X", "how freely words are chosen; 0: always the likeliest", ANSWERS, limits=(0, 5)
        ),
    ] = None
    top_p: Annotated[
        float | None,
        Setting("--top-p X", "choose among words that make up this share of the likely", ANSWERS, limits=(0, 1)),
    ] = None
    top_k: Annotated[
        int | None, Setting("--top-k N", "choose among so many words; 0: all", ANSWERS, limits=(0, _INT32_MAX))
    ] = None
    min_p: Annotated[
        float | None,
        Setting("--min-p X", "leave out words less likely than this share of the likeliest", ANSWERS, limits=(0, 1)),
    ] = None
    typical_p: Annotated[
        float | None, Setting("--typical-p --typical X", "choose among typical words; 1: all", ANSWERS, limits=(0, 1))
    ] = None
    presence_penalty: Annotated[
        float | None,
        Setting("--presence-penalty X", "make words less likely once they were said", ANSWERS, limits=(-2, 2)),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        Setting(
            "--frequency-penalty X", "make words less likely the more often they were said", ANSWERS, limits=(-2, 2)
        ),
    ] = None
    repeat_penalty: Annotated[
        float | None,
        Setting("--repeat-penalty X", "llama.cpp's penalty on repetition; 1: none", ANSWERS, limits=(0.01, 10)),
    ] = None
    repeat_last_n: Annotated[
        int | None,
        Setting(
            "--repeat-last-n N",
            "how many tokens back repetition is looked for; 0: nowhere",
            ANSWERS,
            limits=(-1, _INT32_MAX),
        ),
    ] = None
    seed: Annotated[
        int | None,
        Setting("-s --seed N", "seed of the random choice", ANSWERS, limits=(0, 2**32 - 1), words=_NO_LIMIT),
    ] = None
    max_tokens: Annotated[
        int | None,
        Setting(
            "-n --predict --n-predict N",
            "the most tokens of an answer; -1: as many as fit",
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
            "the most tokens of thought; 0: none, -1: no limit",
            ANSWERS,
            limits=(0, _INT32_MAX),
            words=_NO_LIMIT,
            llama="LLAMA_ARG_THINK_BUDGET",
        ),
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, object] | None,
        Setting("--chat-template-kwargs JSON", "JSON for the chat template", ANSWERS),
    ] = None
