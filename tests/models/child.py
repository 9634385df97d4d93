"""llama.cpp on one model, as a program of its own: it says `ready` when it can be asked, and ends with its input.

Its only argument is JSON: `model`, `socket`, and any fields of xllamacpp's parameters.
"""

import importlib
import json
import sys


def main() -> None:
    """Serve until nobody is there."""
    asked = json.loads(sys.argv[1])
    # Not an import statement: the library has no types, and this is the one place in the tests that knows it.
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = asked.pop("model")
    params.hostnames = [asked.pop("socket")]
    params.mmproj.path = asked.pop("mmproj", "")
    if "pooling" in asked:
        params.pooling_type = getattr(xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{asked.pop('pooling')}")
    # One thread: two that wait for each other cost more than a tiny model's work, and ten times more on busy cores.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    for name, value in asked.items():
        setattr(params, name, value)
    server = xllamacpp.Server(params)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    del server


main()
