"""Flags of llama-server that are no settings here: some are always so or mean nothing, some cannot be honoured.

Each row is written as a setting is: flags and what follows them, then what the user is told.
"""

from typing import NamedTuple


class Foreign(NamedTuple):
    """One flag, or several that get the same answer."""

    usage: str
    reason: str

    @property
    def flags(self) -> list[str]:
        """The flags alone."""
        return [word for word in self.usage.split() if word.startswith("-")]

    @property
    def values(self) -> int | str:
        """How many values follow, as argparse wants it."""
        word = self.usage.split()[-1]
        return 0 if word.startswith("-") else "?" if word.startswith("[") else 1


_ALWAYS = "is always on"
_NOTHING = "has no meaning here and is left out"
_PULL = "is not for serving: fetch the model first with `welldone pull hf:OWNER/REPO/FILE.gguf`, then serve it with -m"
_COMMAND = "is not offered by our engine: start llama-server as the `command` of a model in welldone.toml"
_REQUEST = "is not a setting: send it with each request"
_NEVER = "is not offered"

ACCEPTED = (
    Foreign("--send-done", _ALWAYS),
    Foreign("--metrics", _ALWAYS),
    Foreign("--cache-prompt", _ALWAYS),
    Foreign("--models-autoload", _ALWAYS),
    Foreign("--offline", f"{_ALWAYS}: serving fetches nothing"),
    Foreign("--log-prefix --log-timestamps", _ALWAYS),
    Foreign("--no-context-shift", "is always so"),
    Foreign("--no-log-prefix --no-log-timestamps --no-perf --perf", _NOTHING),
    Foreign("--no-mmproj --no-mmproj-auto --mmproj-auto", f"{_NOTHING}: a projector is used with --mmproj only"),
    Foreign("--log-colors [WHEN]", f"{_NOTHING}: there are colours on a terminal only"),
    Foreign("--threads-http N", f"{_NOTHING}: requests need no threads"),
    Foreign("--prio --prio-batch --poll --poll-batch -dt --defrag-thold N", _NOTHING),
    Foreign("-to --timeout N", f"{_NOTHING}: see --first-byte, --idle and --write"),
    Foreign("--tags X", f"{_NOTHING}: llama-server only shows them"),
    Foreign("-lv --verbosity --log-verbosity N", f"{_NOTHING}: see --log-level"),
)
"""Taken, with a note."""

REFUSED = (
    Foreign(
        "-hf -hfr --hf-repo -hff --hf-file -hft --hf-token -mu --model-url -dr --docker-repo -mmu --mmproj-url X", _PULL
    ),
    Foreign("--models-dir --models-preset X", "is not known: write the models in welldone.toml"),
    Foreign(
        "-rea --reasoning X",
        "is not known: --reasoning-budget 0 turns thinking off, as does the template's own value, mostly "
        """--chat-template-kwargs '{"enable_thinking": false}'""",
    ),
    Foreign("--log-file FILE", "is not known: send standard error to the file, with 2> FILE"),
    Foreign("--media-path PATH", "is not offered: no file is read for a client"),
    Foreign("--api-prefix --path --tools --mcp-servers-config --mcp-servers-json --slot-save-path X", _NEVER),
    Foreign("--props --agent -ag --ui-mcp-proxy --webui-mcp-proxy --reuse-port --no-models-autoload", _NEVER),
    Foreign(
        "--grammar --grammar-file -j --json-schema -jf --json-schema-file -l --logit-bias -r --reverse-prompt X",
        _REQUEST,
    ),
    Foreign("--dry-multiplier --dry-base --xtc-probability --xtc-threshold --mirostat --dynatemp-range X", _REQUEST),
    Foreign("--ignore-eos --no-cache-prompt", _REQUEST),
    Foreign(
        "-md --model-draft --draft --draft-max --draft-min --spec-type --samplers --sampler-seq --keep X", _COMMAND
    ),
    Foreign("--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --numa --rpc X", _COMMAND),
    Foreign(
        "-dev --device -ot --override-tensor -ncmoe --n-cpu-moe --override-kv -C --cpu-mask -Cr --cpu-range X", _COMMAND
    ),
    Foreign(
        "--lora-scaled --control-vector --control-vector-scaled -lm --load-mode -ctxcp --ctx-checkpoints X", _COMMAND
    ),
    Foreign(
        "-cmoe --cpu-moe --context-shift --check-tensors --no-mmproj-offload --no-repack -nr -sp --special", _COMMAND
    ),
)
"""A mistake: what they ask for would not happen."""
