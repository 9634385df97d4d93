"""Flags of llama-server that are no settings here: some are always so or mean nothing, some cannot be honoured.

Each row is written as a setting is: flags and what follows them, then what the user is told.
"""

from typing import NamedTuple


class LlamaServerFlag(NamedTuple):
    """One flag, or several that get the same answer."""

    usage: str
    reason: str

    @property
    def flags(self) -> list[str]:
        """The flags alone."""
        return [word for word in self.usage.split() if word.startswith("-")]

    @property
    def nargs(self) -> int | str:
        """How many values follow, as argparse wants it."""
        word = self.usage.split()[-1]
        return 0 if word.startswith("-") else "?" if word.startswith("[") else 1


_ALWAYS_ON = "is always on"
_NO_MEANING = "has no meaning here and is left out"
_USE_PULL = (
    "is not for serving: fetch the model first with `welldone pull hf:OWNER/REPO/FILE.gguf`, then serve it with -m"
)
_USE_COMMAND = "is not offered by our engine: start llama-server as the `command` of a model in welldone.toml"
_USE_REQUEST = "is not a setting: send it with each request"
_NOT_OFFERED = "is not offered"

IGNORED_FLAGS = (
    LlamaServerFlag("--send-done", _ALWAYS_ON),
    LlamaServerFlag("--metrics", _ALWAYS_ON),
    LlamaServerFlag("--cache-prompt", _ALWAYS_ON),
    LlamaServerFlag("--models-autoload", _ALWAYS_ON),
    LlamaServerFlag("--offline", f"{_ALWAYS_ON}: serving fetches nothing"),
    LlamaServerFlag("--log-prefix --log-timestamps", _ALWAYS_ON),
    LlamaServerFlag("--no-context-shift", "is always so"),
    LlamaServerFlag("--no-log-prefix --no-log-timestamps --no-perf --perf", _NO_MEANING),
    LlamaServerFlag(
        "--no-mmproj --no-mmproj-auto --mmproj-auto", f"{_NO_MEANING}: a projector is used with --mmproj only"
    ),
    LlamaServerFlag("--log-colors [WHEN]", f"{_NO_MEANING}: there are colours on a terminal only"),
    LlamaServerFlag("--threads-http N", f"{_NO_MEANING}: requests need no threads"),
    LlamaServerFlag("--prio --prio-batch --poll --poll-batch -dt --defrag-thold N", _NO_MEANING),
    LlamaServerFlag("-to --timeout N", f"{_NO_MEANING}: see --first-byte, --idle and --write"),
    LlamaServerFlag("--tags X", f"{_NO_MEANING}: llama-server only shows them"),
    LlamaServerFlag("-lv --verbosity --log-verbosity N", f"{_NO_MEANING}: see --log-level"),
)
"""Taken, with a note."""

REFUSED_FLAGS = (
    LlamaServerFlag(
        "-hf -hfr --hf-repo -hff --hf-file -hft --hf-token -mu --model-url -dr --docker-repo -mmu --mmproj-url X",
        _USE_PULL,
    ),
    LlamaServerFlag("--models-dir --models-preset X", "is not known: write the models in welldone.toml"),
    LlamaServerFlag(
        "-rea --reasoning X",
        "is not known: --reasoning-budget 0 turns thinking off, as does the template's own value, mostly "
        """--chat-template-kwargs '{"enable_thinking": false}'""",
    ),
    LlamaServerFlag("--log-file FILE", "is not known: send standard error to the file, with 2> FILE"),
    LlamaServerFlag("--media-path PATH", "is not offered: no file is read for a client"),
    LlamaServerFlag(
        "--api-prefix --path --tools --mcp-servers-config --mcp-servers-json --slot-save-path X", _NOT_OFFERED
    ),
    LlamaServerFlag(
        "--props --agent -ag --ui-mcp-proxy --webui-mcp-proxy --reuse-port --no-models-autoload", _NOT_OFFERED
    ),
    LlamaServerFlag(
        "--grammar --grammar-file -j --json-schema -jf --json-schema-file -l --logit-bias -r --reverse-prompt X",
        _USE_REQUEST,
    ),
    LlamaServerFlag(
        "--dry-multiplier --dry-base --xtc-probability --xtc-threshold --mirostat --dynatemp-range X", _USE_REQUEST
    ),
    LlamaServerFlag("--ignore-eos --no-cache-prompt", _USE_REQUEST),
    LlamaServerFlag(
        "-md --model-draft --draft --draft-max --draft-min --spec-type --samplers --sampler-seq --keep X", _USE_COMMAND
    ),
    LlamaServerFlag(
        "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --numa --rpc X", _USE_COMMAND
    ),
    LlamaServerFlag(
        "-dev --device -ot --override-tensor -ncmoe --n-cpu-moe --override-kv -C --cpu-mask -Cr --cpu-range X",
        _USE_COMMAND,
    ),
    LlamaServerFlag(
        "--lora-scaled --control-vector --control-vector-scaled -lm --load-mode -ctxcp --ctx-checkpoints X",
        _USE_COMMAND,
    ),
    LlamaServerFlag(
        "-cmoe --cpu-moe --context-shift --check-tensors --no-mmproj-offload --no-repack -nr -sp --special",
        _USE_COMMAND,
    ),
)
"""A mistake: what they ask for would not happen."""
