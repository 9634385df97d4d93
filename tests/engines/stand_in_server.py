"""Stand-in for llama-server, with its flags and the llama.cpp of the wheel behind them.

`install` writes it as a program. `WITHOUT` in its text lists flags that it does not know, like an older version.
"""

import importlib
import os
import signal
import sys
from pathlib import Path

VERSION = 11549
DEVICES = "Available devices:\n  (none)\n"
WITHOUT: tuple[str, ...] = ()
SYSTEM_INFO = "system_info: n_threads = 2 / 2 | CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | AVX512 = 1 | SVE_CNT = 0 |"
VALUES = (
    "--model --alias --host --port --api-key-file --mmproj --lora --ctx-size --predict --parallel --batch-size "
    "--ubatch-size --threads --flash-attn --threads-batch --cache-type-k --cache-type-v --cache-reuse --cache-ram "
    "--gpu-layers --main-gpu --split-mode --tensor-split --load-mode --reasoning-format --chat-template-file --pooling "
    "--cors-origins --sse-ping-interval --timeout --log-verbosity --fit --spec-draft-model --spec-type "
    "--device --spec-draft-device --spec-draft-n-max --draft-max --spec-draft-n-min --spec-draft-p-min --spec-draft-ngl"
)
SWITCHES = (
    "--list-devices "
    "--no-warmup --no-cont-batching --no-kv-offload --swa-full --kv-unified --no-kv-unified --jinja --no-jinja "
    "--embeddings --metrics --no-slots --no-ui --offline --no-cors-credentials --mlock --no-mmap"
)


def install(path: Path, *, without: tuple[str, ...] = (), version: int = VERSION, devices: str = DEVICES) -> Path:
    """Write the program for this Python."""
    text = Path(__file__).read_text("utf-8").replace("WITHOUT: tuple[str, ...] = ()", f"WITHOUT = {without!r}", 1)
    text = text.replace(f"VERSION = {VERSION}", f"VERSION = {version}", 1)
    text = text.replace(f"DEVICES = {DEVICES!r}".replace("'", '"'), f"DEVICES = {devices!r}", 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{text}", "utf-8")
    path.chmod(0o755)
    return path


def main(words: list[str]) -> int:
    """Print the help or the version, or serve until a signal arrives."""
    if words == ["--help"]:
        known = [flag for flag in f"{VALUES} {SWITCHES}".split() if flag not in WITHOUT]
        host = "" if ".sock" in WITHOUT else ", or a UNIX socket if it ends with .sock"
        lines = [*(f"{flag}   words about it" for flag in known), f"  listens on an address{host}"]
        sys.stdout.write("\n".join(lines))
        return 0
    if words == ["--list-devices"]:
        sys.stdout.write(DEVICES)
        return 0
    if words == ["--version"]:
        sys.stderr.write(f"version: {VERSION} (stand-in)\nbuilt with nothing\n")
        return 0
    options: dict[str, str] = {}
    while words:
        flag = words.pop(0)
        if flag in WITHOUT or flag not in f"{VALUES} {SWITCHES}".split():
            sys.stderr.write(f"error: invalid argument: {flag}\n")
            return 1
        options[flag] = words.pop(0) if flag in VALUES.split() else ""
    if options.get("--log-verbosity") == "4":
        sys.stderr.write(f"{SYSTEM_INFO}\n")
    return 1 if options["--model"] == os.devnull else _serve(options)


def _serve(options: dict[str, str]) -> int:
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = options["--model"], {options.get("--alias", "")}
    params.hostnames, params.api_keys = (
        [options.get("--host", "127.0.0.1")],
        [Path(options["--api-key-file"]).read_text("utf-8")],
    )
    params.port = int(options.get("--port", 0))
    params.n_ctx, params.n_parallel = int(options["--ctx-size"]), int(options["--parallel"])
    params.n_predict = int(options["--predict"])
    params.n_batch, params.n_ubatch = int(options["--batch-size"]), int(options["--ubatch-size"])
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics, params.ui = "--metrics" in options, False
    params.embedding, params.use_jinja = "--embeddings" in options, "--jinja" in options
    if "--chat-template-file" in options:
        params.chat_template = Path(options["--chat-template-file"]).read_text("utf-8")
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:
        return 1
    signal.sigwait({signal.SIGTERM})
    del server
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
