"""Settings of one local model. Names and flags are those of llama-server where it has them."""

from dataclasses import dataclass, field
from pathlib import Path

from welldone.config import builtin_model
from welldone.config.settings import DAY_S, QUEUE_MAX, Setting, setting_group

model_setting = setting_group(Setting, "Model")
engine_setting = setting_group(Setting, "Engine")
answer_setting = setting_group(Setting, "Answers")
limit_setting = setting_group(Setting, "Limits")

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

_SPEC_TYPES = (
    "none draft-simple draft-eagle3 draft-mtp draft-dflash draft-dspark "
    "ngram-simple ngram-map-k ngram-map-k4v ngram-mod ngram-cache"
)
_CACHE_TYPES = "f32 f16 bf16 q8_0 q4_0 q4_1 iq4_nl q5_0 q5_1"
_AUTO = {"-1": None, "0": None, "auto": None}
_NO_LIMIT = {"-1": None}
_INT32_MAX = 2**31 - 1  # llama.cpp stores these in 32 bits
_SLOTS_MAX = 4096  # vLLM uses 1,024 on a large GPU
_THREADS_MAX = 512  # llama.cpp's limit
_DEVICES_MAX = 16  # llama.cpp's limit
_DRAFT_MAX = 512  # a batch; drafts have up to 64 tokens
_TIB_IN_MIB = 2**20  # more is a typing mistake


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """One model: its names, its file, and the configuration of its engine."""

    name: str
    """The id that clients use: the first `--alias`, the name of the TOML table, or the stem of the file."""

    file: Path | None = model_setting(
        None,
        "GGUF file, or name of a model; the other models of the config file are not served",
        "-m --model FILE",
        unset="the built-in small model",
        is_name_or_file=True,
        is_of_one_model=True,
    )
    hf_repo: str | None = model_setting(
        None,
        "model on the Hugging Face Hub, downloaded at the first start; without a quantisation: one that is here, else "
        "Q4_K_M or a similar one",
        "-hf -hfr --hf-repo OWNER/REPO[:QUANT]",
        is_of_one_model=True,
    )
    aliases: tuple[str, ...] = model_setting(
        (),
        "names for clients, separated by commas; the first one is listed",
        "-a --alias NAMES",
        unset="the file's name",
        is_of_one_model=True,
    )
    command: tuple[str, ...] = model_setting(
        (),
        "command that runs the engine; it must listen on `{port}` or `{socket}`",
        is_secret=True,
        is_of_one_model=True,
    )
    environment: dict[str, str] = model_setting({}, "environment variables of the command", is_secret=True)
    key: str | None = model_setting(None, "API key that the command requires", is_secret=True)
    mmproj: Path | None = model_setting(
        None, "multimodal projector, for images and audio", "-mm --mmproj FILE", is_of_one_model=True
    )
    lora: tuple[str, ...] = model_setting(
        (), "LoRA adapter files; may be repeated", "--lora FILE", is_file=True, is_of_one_model=True
    )
    jinja: bool = model_setting(
        True, "use the model's own chat template; required for tools", "--jinja", off="--no-jinja"
    )
    chat_template: str | None = model_setting(
        None, "chat template, or the name of one built into llama.cpp", "--chat-template TEMPLATE"
    )
    chat_template_file: Path | None = model_setting(None, "file with a chat template", "--chat-template-file FILE")
    reasoning_format: str = model_setting(
        "auto",
        "where reasoning goes: none leaves it in the text, the others move it to `reasoning_content`",
        "--reasoning-format FORMAT",
        choices="auto none deepseek deepseek-legacy",
        llama="LLAMA_ARG_THINK",
    )
    json_tool_calls: str = model_setting(
        "auto",
        "convert an answer that is only the JSON of a call, bare or in a code fence, to that tool call; auto: for "
        "models that are known for such answers (Qwen2.5-Coder)",
        "--json-tool-calls on|off|auto",
        choices="on off auto",
        words={"true": "on", "false": "off"},
        alone="on",
    )
    embeddings: bool = model_setting(False, "enable embeddings", "--embeddings --embedding")
    reranking: bool = model_setting(False, "enable reranking", "--reranking --rerank")
    pooling: str | None = model_setting(
        None,
        "pooling type for embeddings",
        "--pooling KIND",
        choices="none mean cls last rank",
        unset="the model's own",
    )
    preload: bool = model_setting(
        False, "load at startup instead of on the first request; a single model always is", "--preload"
    )
    idle_unload_s: float = model_setting(
        0.0,
        "unload after this many seconds without requests; 0: never",
        "--idle-unload --sleep-idle-seconds SECONDS",
        limits=(0, None),
        words={"-1": 0.0},
    )
    engine: Path | None = engine_setting(
        None,
        "llama.cpp that runs it: auto (the fastest that `welldone engine` lists), wheel, or a llama-server by its path "
        "or name",
        "--engine auto|wheel|PATH",
        words={"auto": None},
        unset="auto",
        is_name_or_file=True,
    )
    ctx_size: int = engine_setting(
        0,
        "context size in tokens, divided among the slots; 0: the model's own per slot, at most 16384 in total",
        "-c --ctx-size N",
        limits=(0, _INT32_MAX),
    )
    parallel: int = engine_setting(
        0,
        "slots: requests that run at once",
        "-np --parallel N",
        limits=(1, _SLOTS_MAX),
        words={"-1": 0},
        llama="LLAMA_ARG_N_PARALLEL",
        unset="4; 1 with -c, so that a request gets the whole context; 256 for a command that does not set it",
    )
    gpu_layers: int | None = engine_setting(
        None,
        "layers to offload to the GPU: a number, `all` or `auto`",
        "-ngl --gpu-layers --n-gpu-layers N",
        limits=(0, _INT32_MAX),
        words={"auto": None, "-1": None, "all": ALL_LAYERS},
        unset="auto",
        llama="LLAMA_ARG_N_GPU_LAYERS",
    )
    threads: int | None = engine_setting(
        None,
        "CPU threads",
        "-t --threads N",
        limits=(1, _THREADS_MAX),
        words=_AUTO,
        unset="the cores of the machine or container; for a small model from 8 on, one in eight stays free",
    )
    threads_batch: int | None = engine_setting(
        None,
        "CPU threads for prompt processing",
        "-tb --threads-batch N",
        limits=(1, _THREADS_MAX),
        words=_AUTO,
        unset="as --threads",
    )
    # llama-server has 2048, computed 512 at a time: several prompts at once are read a few percent faster, but other
    # answers stall four times as long
    batch_size: int = engine_setting(
        512,
        "prompt tokens processed before running answers get their next token",
        "-b --batch-size N",
        limits=(1, _INT32_MAX),
        llama="LLAMA_ARG_BATCH",
    )
    ubatch_size: int = engine_setting(
        512, "tokens computed at once", "-ub --ubatch-size N", limits=(1, _INT32_MAX), llama="LLAMA_ARG_UBATCH"
    )
    flash_attn: str = engine_setting(
        "auto",
        "flash attention; without a value: on",
        "-fa --flash-attn on|off|auto",
        choices="on off auto",
        words={"true": "on", "1": "on", "false": "off", "0": "off"},
        alone="on",
    )
    cont_batching: bool = engine_setting(
        True, "continuous batching", "-cb --cont-batching", off="-nocb --no-cont-batching"
    )
    # One client must not be able to end another's answer
    kv_unified: bool = engine_setting(
        False,
        "share one context between all slots: a request that fills it ends the others with an error",
        "-kvu --kv-unified",
        off="-no-kvu --no-kv-unified",
    )
    cache_type_k: str = engine_setting(
        "f16", "data type of the KV cache, keys", "-ctk --cache-type-k TYPE", choices=_CACHE_TYPES
    )
    cache_type_v: str = engine_setting(
        "f16", "data type of the KV cache, values", "-ctv --cache-type-v TYPE", choices=_CACHE_TYPES
    )
    cache_ram_mib: int = engine_setting(
        512, "memory of the prompt cache, in MiB; 0: none", "-cram --cache-ram MIB", limits=(0, _TIB_IN_MIB)
    )
    cache_reuse: int = engine_setting(
        0,
        "smallest chunk of a cached prompt to reuse by shifting, in tokens; 0: none",
        "--cache-reuse N",
        limits=(0, _INT32_MAX),
    )
    mlock: bool = engine_setting(False, "lock the model in memory, so that it is never swapped out", "--mlock")
    mmap: bool = engine_setting(True, "memory-map the file instead of reading it", "--mmap", off="--no-mmap")
    standby: bool = engine_setting(
        False,
        "keep a second engine loaded, which takes over at once when the first one fails; needs memory for its context "
        "(and on a GPU for the model)",
        "--standby",
        off="--no-standby",
    )
    warmup: bool = engine_setting(True, "run the model once after loading", "--warmup", off="--no-warmup")
    swa_full: bool = engine_setting(
        False, "use a full-size cache for models with sliding window attention", "--swa-full"
    )
    kv_offload: bool = engine_setting(
        True, "keep the KV cache on the GPU", "-kvo --kv-offload", off="-nkvo --no-kv-offload"
    )
    device: tuple[str, ...] = engine_setting(
        (),
        "GPUs to use, separated by commas, such as CUDA0,CUDA1; `none`: the CPU only",
        "-dev --device NAMES",
        unset="all",
    )
    main_gpu: int = engine_setting(0, "main GPU", "-mg --main-gpu N", limits=(0, _DEVICES_MAX - 1))
    split_mode: str = engine_setting(
        "layer", "how to split a model over several GPUs", "-sm --split-mode MODE", choices="none layer row tensor"
    )
    tensor_split: tuple[str, ...] = engine_setting(
        (), "share of each GPU, such as 3,1", "-ts --tensor-split SHARES", unset="even"
    )
    draft_model: Path | None = engine_setting(
        None,
        "draft model for speculative decoding: a GGUF file, or name of a model, with the same vocabulary",
        "-md --model-draft --spec-draft-model FILE",
        llama="LLAMA_ARG_SPEC_DRAFT_MODEL",
        is_name_or_file=True,
        is_of_one_model=True,
    )
    spec_type: tuple[str, ...] = engine_setting(
        (),
        "kinds of speculative decoding, separated by commas",
        "--spec-type TYPES",
        choices=_SPEC_TYPES,
        unset="draft-simple with a draft model, else none",
    )
    draft_max: int | None = engine_setting(
        None,
        "most tokens to draft at once",
        "--draft-max --draft --draft-n --spec-draft-n-max N",
        limits=(1, _DRAFT_MAX),
        llama="LLAMA_ARG_SPEC_DRAFT_N_MAX",
        unset="llama.cpp's: 3",
    )
    draft_min: int | None = engine_setting(
        None,
        "shortest draft to use, in tokens",
        "--draft-min --draft-n-min --spec-draft-n-min N",
        limits=(0, _DRAFT_MAX),
        llama="LLAMA_ARG_SPEC_DRAFT_N_MIN",
        unset="llama.cpp's: 0",
    )
    draft_p_min: float | None = engine_setting(
        None,
        "lowest probability of a drafted token",
        "--draft-p-min --spec-draft-p-min X",
        limits=(0, 1),
        llama="LLAMA_ARG_SPEC_DRAFT_P_MIN",
        unset="llama.cpp's: 0",
    )
    draft_gpu_layers: int | None = engine_setting(
        None,
        "layers of the draft model to offload to the GPU: a number, `all` or `auto`",
        "-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl N",
        limits=(0, _INT32_MAX),
        words={"auto": None, "-1": None, "all": ALL_LAYERS},
        unset="auto",
        llama="LLAMA_ARG_N_GPU_LAYERS_DRAFT",
    )
    draft_device: tuple[str, ...] = engine_setting(
        (), "GPUs for the draft model", "-devd --device-draft --spec-draft-device NAMES", unset="as --device"
    )
    start_limit_s: float | None = engine_setting(
        None,
        "timeout for loading, in seconds",
        "--start-limit SECONDS",
        limits=(1, DAY_S),
        unset=f"{LOAD_TIMEOUT_S:g}; {COMMAND_LOAD_TIMEOUT_S:g} for a command",
    )
    queue: int = limit_setting(64, "queued requests; more get status 429", "--queue N", limits=(0, QUEUE_MAX))
    queue_wait_s: float = limit_setting(
        60.0, "seconds that a request may be queued before status 503", "--queue-wait SECONDS", limits=(0, DAY_S)
    )

    defaults: dict[str, object] = field(default_factory=dict)
    """Defaults of request fields: those of `RequestDefaults` that are set."""

    @property
    def slots(self) -> int:
        """Requests that run at once. A configured context size belongs to one request, as with llama-server."""
        if self.command:
            return self.parallel or COMMAND_SLOTS
        return self.parallel or (1 if self.ctx_size else DEFAULT_SLOTS)

    @property
    def needs_gpu(self) -> bool:
        """Whether a setting has an effect on a GPU only."""
        return bool(
            self.gpu_layers or self.draft_gpu_layers or self.main_gpu or self.tensor_split or self.split_mode != "layer"
        )

    @property
    def has_speculation(self) -> bool:
        """Whether it uses speculative decoding."""
        return self.draft_model is not None or bool({*self.spec_type} - {"none"})

    @property
    def is_builtin(self) -> bool:
        """Whether it is the built-in model, which is downloaded if it is missing."""
        if self.command or self.hf_repo is not None:
            return False
        return self.file is None or builtin_model.is_builtin_name(str(self.file))

    @property
    def load_timeout_s(self) -> float:
        """Timeout for loading, for an engine that hangs; one that exits is noticed at once."""
        return self.start_limit_s or (COMMAND_LOAD_TIMEOUT_S if self.command else LOAD_TIMEOUT_S)


@dataclass(frozen=True, kw_only=True)
class RequestDefaults:
    """Defaults of request fields, under the names of the API. None: the engine's default."""

    temperature: float | None = answer_setting(
        None, "sampling temperature; 0: always the most likely token", "--temperature --temp X", limits=(0, 5)
    )
    top_p: float | None = answer_setting(
        None, "nucleus sampling: keep the most likely tokens up to this total probability", "--top-p X", limits=(0, 1)
    )
    top_k: int | None = answer_setting(
        None, "keep this many of the most likely tokens; 0: all", "--top-k N", limits=(0, _INT32_MAX)
    )
    min_p: float | None = answer_setting(
        None, "drop tokens below this share of the highest probability", "--min-p X", limits=(0, 1)
    )
    typical_p: float | None = answer_setting(
        None, "locally typical sampling; 1: off", "--typical-p --typical X", limits=(0, 1)
    )
    presence_penalty: float | None = answer_setting(
        None, "penalty for tokens that occurred before", "--presence-penalty X", limits=(-2, 2)
    )
    frequency_penalty: float | None = answer_setting(
        None, "penalty for tokens by how often they occurred", "--frequency-penalty X", limits=(-2, 2)
    )
    repeat_penalty: float | None = answer_setting(
        None, "llama.cpp's repetition penalty; 1: off", "--repeat-penalty X", limits=(0.01, 10)
    )
    repeat_last_n: int | None = answer_setting(
        None,
        "tokens considered for the repetition penalty; 0: none, -1: the whole context",
        "--repeat-last-n N",
        limits=(-1, _INT32_MAX),
    )
    seed: int | None = answer_setting(None, "random seed", "-s --seed N", limits=(0, 2**32 - 1), words=_NO_LIMIT)
    max_tokens: int | None = answer_setting(
        None,
        "maximum tokens of an answer; -1: as many as fit",
        "-n --predict --n-predict N",
        limits=(1, _INT32_MAX),
        words=_NO_LIMIT,
        llama="LLAMA_ARG_N_PREDICT",
    )
    thinking_budget_tokens: int | None = answer_setting(
        None,
        "maximum reasoning tokens; 0: none, -1: no limit",
        "--reasoning-budget N",
        limits=(0, _INT32_MAX),
        words=_NO_LIMIT,
        llama="LLAMA_ARG_THINK_BUDGET",
    )
    chat_template_kwargs: dict[str, object] | None = answer_setting(
        None, "JSON object with arguments of the chat template", "--chat-template-kwargs JSON"
    )
