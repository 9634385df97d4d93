"""Effect of engine settings on speed: `python -m benchmarks.knobs -m model.gguf -t 8 [--engine NAME]`.

All candidates are loaded and answer alternately, one request at a time: a prompt of so many tokens, then 48 tokens. The
fastest round counts. The first row has welldone's defaults.
"""

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from welldone.config.model import ModelSettings
from welldone.engines.builds import EngineSpeed
from welldone.engines.errors import EngineError
from welldone.engines.models.store import models_folder, resolve_model_file
from welldone.engines.self_test import measure_settings

PROMPT_TOKENS = 1000
"""Two batches of the default size."""
CONTEXT = 2048

CANDIDATES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "OMP_WAIT_POLICY=passive": {"environment": {"OMP_WAIT_POLICY": "passive"}},
    "llama.cpp's waiting": {"environment": {"OMP_WAIT_POLICY": ""}},
    "-ub 128": {"ubatch_size": 128},
    "-ub 256": {"ubatch_size": 256},
    "-b 2048": {"batch_size": 2048},
    "-b 2048 -ub 1024": {"batch_size": 2048, "ubatch_size": 1024},
    "-fa off": {"flash_attn": "off"},
    "-ctk q8_0": {"cache_type_k": "q8_0"},
    "-ctk q8_0 -ctv q8_0": {"cache_type_k": "q8_0", "cache_type_v": "q8_0"},
    "-kvu -np 4": {"kv_unified": True, "parallel": 4, "ctx_size": 4 * CONTEXT},
    "-np 4": {"parallel": 4, "ctx_size": 4 * CONTEXT},
}


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", type=Path, help="GGUF file or name of a model [the built-in one]")
    parser.add_argument("-t", "--threads", type=int, help="threads of the engine [all cores]")
    parser.add_argument("--engine", type=Path, help="as in welldone serve [auto]")
    parser.add_argument("--rounds", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--prompt-tokens", type=int, default=PROMPT_TOKENS, help="[%(default)s]")
    options = parser.parse_args()
    file = resolve_model_file(models_folder(os.environ), options.model)
    base: dict[str, Any] = {"file": file, "engine": options.engine, "threads": options.threads, "ctx_size": CONTEXT}
    settings = [ModelSettings(name=name, **base | {"parallel": 1} | changes) for name, changes in CANDIDATES.items()]
    try:
        found = asyncio.run(
            measure_settings(settings, os.environ, rounds=options.rounds, prompt_tokens=options.prompt_tokens)
        )
    except EngineError as error:
        print(error.message, file=sys.stderr)
        return 3
    print(
        f"{options.threads or os.cpu_count()} threads, {options.rounds} rounds, load average {os.getloadavg()[0]:.1f}"
    )
    print(f"{'settings':<25}{'tokens/s':>10}{'ratio':>7}{'prompt tokens/s':>17}{'ratio':>7}")
    first: EngineSpeed = found[0]
    for name, speed in zip(CANDIDATES, found, strict=True):
        ratios = speed.decode / first.decode, speed.prompt / first.prompt
        print(f"{name:<25}{speed.decode:>10.1f}{ratios[0]:>7.2f}{speed.prompt:>17.0f}{ratios[1]:>7.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
