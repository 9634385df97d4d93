"""Speed of quantisations on this CPU: `python -m benchmarks.quantisations`. Unquantised types are included.

Each model has the same size in parameters, and one thread computes it. What the weights are does not matter: they are
zeros, and the few matrices that choose tokens are random.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.random_gguf import TYPES, Size, random_model
from welldone.engines.errors import EngineError
from welldone.engines.self_test import measure_engines

SIZE = Size(width=1024, layers=4, heads=16, key_heads=4, hidden=4096)
"""61 million parameters: seconds per type, and too large for the caches of most CPUs."""


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", type=Path, default=Path("wheel"), help="as in welldone serve [%(default)s]")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(TYPES), help="such as Q4_0,F16")
    parser.add_argument("--rounds", type=int, default=2, help="the fastest one counts [%(default)s]")
    options = parser.parse_args()
    print(f"{'type':<9}{'bits':>6}{'tokens/s':>11}{'prompt tokens/s':>18}")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            blocks = TYPES[name]
            path = random_model(SIZE, blocks).write(Path(folder) / f"{name}.gguf")
            try:
                (speed,) = asyncio.run(measure_engines([options.engine], path, os.environ, rounds=options.rounds))
            except EngineError as error:
                print(f"{name}: {error.message}", file=sys.stderr)
                continue
            finally:
                path.unlink()
            bits = 8 * blocks.bytes / blocks.values
            print(f"{name:<9}{bits:>6.2f}{speed.decode:>11.1f}{speed.prompt:>18.0f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
