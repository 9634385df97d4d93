"""`make faults`: runs the fault plan, reports progress, and writes docs/reliability.md from the results."""

import argparse
import os
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from faults import page, progress, results
from faults.case import Case, CaseContext, Outcome
from faults.plan import CASES, PLAN
from faults.results import PAGE, Result
from tests.models import tiny

EXAMPLES = """examples:
  make faults
  make faults ARGS="--list"
  make faults ARGS="--only nemesis,soak"
  make faults ARGS="--only nemesis --seed 4711"
  make faults ARGS="--short"
"""


INTERRUPTED = 128 + signal.SIGINT


def main() -> int:
    """Run the selected cases; return 1 if a limit was missed."""
    options = _options()
    if options.list:
        for case in CASES.values():
            print(f"{case.name:<24} {case.fault}")
        return 0
    if options.draw:
        _draw()
        return 0
    signal.signal(signal.SIGTERM, _end)
    try:
        return _play(options)
    except KeyboardInterrupt:
        print("interrupted; finished cases are stored" if not options.short else "interrupted")
        return INTERRUPTED


def _end(number: int, frame: FrameType | None) -> None:
    """End as by Ctrl-C: no server and no folder is left behind."""
    raise KeyboardInterrupt


def _play(options: argparse.Namespace) -> int:
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    print(f"seed {seed}; the same seed gives the same faults", flush=True)
    seen: dict[str, Result] = {}
    with tempfile.TemporaryDirectory(prefix="welldone-faults-") as folder:
        os.environ["TMPDIR"] = folder  # for the servers: a killed one leaves its folder behind
        model = tiny.chat_model().write(Path(folder) / "tiny.gguf")
        for name in options.only:
            seen[name] = _run(CASES[name], model, seed, is_short=options.short)
            if not options.short:  # at once, so that an interrupted plan keeps its results
                _keep(seen)
    missed = [name for name, one in seen.items() if one.outcome.broken(is_short=options.short)]
    absent = [name for name, one in seen.items() if one.outcome.not_run]
    print(
        f"{len(seen) - len(missed) - len(absent)} of {len(seen)} within their limits"
        + (f"; missed: {', '.join(missed)}" if missed else "")
        + (f"; not run: {', '.join(absent)}" if absent else "")
    )
    return 1 if missed else 0


def _run(case: Case, model: Path, seed: int, *, is_short: bool) -> Result:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"welldone-{case.name}-") as folder:
        print(f"{case.name}: {case.fault}", flush=True)
        context = CaseContext(Path(folder), model, seed, is_short, progress.note)
        try:
            outcome = case.run(context)
        except Exception as error:  # noqa: BLE001 - the other cases still run
            outcome = Outcome(happened="the case itself failed", problems=(f"{type(error).__name__}: {error}",))
    seen = results.result(outcome, time.monotonic() - began, seed)
    _show(seen, is_short=is_short)
    return seen


def _show(seen: Result, *, is_short: bool) -> None:
    progress.wipe()
    outcome = seen.outcome
    if outcome.not_run:
        print(f"  not run: {outcome.not_run}")
    else:
        print(f"  {outcome.count:,} times: {outcome.happened}  ({seen.seconds:.0f} s)")
    for figure in outcome.figures:
        print(f"  {page.figure(figure)}")
    for words in outcome.broken(is_short=is_short):
        print(f"  MISSED {words}")
    sys.stdout.flush()


def _keep(seen: dict[str, Result]) -> None:
    known = {**results.stored(), **seen}
    results.store({name: known[name] for name in CASES if name in known})
    _draw()


def _draw() -> None:
    PAGE.write_text(page.draw(PLAN, results.stored()), "utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make faults",
        description="Run the fault plan against real servers, and write docs/reliability.md.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="list the cases")
    parser.add_argument("--draw", action="store_true", help="write the page from stored results")
    parser.add_argument("--only", type=_names, default=list(CASES), metavar="NAME,…", help="run only these cases")
    parser.add_argument("--short", action="store_true", help="few repetitions, and write nothing")
    parser.add_argument("--seed", type=int, help="repeat the random choices of a run")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown case: {', '.join(unknown)}; --list shows all")
    return names


if __name__ == "__main__":
    sys.exit(main())
