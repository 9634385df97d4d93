"""Run llama.cpp's HTTP server from xllamacpp, with its defaults, one thread, and /slots and /metrics enabled."""

import argparse
import signal
from pathlib import Path

import xllamacpp

SLOTS = 4  # llama-server's own default
CONTEXT = 8192  # tokens, for all slots together
THREADS = 1  # on a busy machine, more threads mostly wait for each other


def main() -> None:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--template", type=Path, required=True, help="chat template file")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--api-key", required=True)
    options = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = str(options.model)
    params.model_alias = {"smollm2-135m-instruct"}
    params.chat_template = options.template.read_text("utf-8")
    params.use_jinja = True
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.api_keys = [options.api_key]
    params.n_parallel, params.n_ctx = SLOTS, CONTEXT
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
    params.endpoint_slots = params.endpoint_metrics = True
    server = xllamacpp.Server(params)
    signal.pause()
    del server


if __name__ == "__main__":
    main()
