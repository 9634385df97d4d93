"""llama.cpp's own HTTP server, as xllamacpp brings it: its defaults, with what a check can look at turned on."""

import argparse
import signal
from pathlib import Path

import xllamacpp

SLOTS = 4  # llama-server's own default
CONTEXT = 8192  # tokens for all slots together


def main() -> None:
    """Serves until it is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--template", type=Path, required=True, help="a chat template")
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
    params.endpoint_slots = params.endpoint_metrics = True
    server = xllamacpp.Server(params)
    signal.pause()  # a signal ends the process, and the server with it
    del server


if __name__ == "__main__":
    main()
