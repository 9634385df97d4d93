"""Program that serves one model with llama.cpp: prints `ready` when it accepts requests, and ends at EOF of stdin.

Its only argument is JSON: `model`, `socket`, and any fields of xllamacpp's parameters.
"""

import importlib
import json
import sys


def main() -> None:
    """Serve until EOF of standard input."""
    options = json.loads(sys.argv[1])
    # Not an import statement: the library has no types, and only this file of the tests uses it.
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = options.pop("model")
    params.hostnames = [options.pop("socket")]
    params.mmproj.path = options.pop("mmproj", "")
    if "pooling" in options:
        params.pooling_type = getattr(xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{options.pop('pooling')}")
    # One thread: synchronisation of two costs more than a tiny model's computation, and ten times more on busy cores.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    for name, value in options.items():
        setattr(params, name, value)
    server = xllamacpp.Server(params)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    del server


main()
