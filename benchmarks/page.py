"""What long streams cost the page: how long the browser is busy at a stretch, and what stays in its memory.

A real Chromium has the page open, with the inspector, and asks a scripted upstream through the gateway. A task is what
the browser does without looking at the mouse or the keyboard; it tells of those that take 50 ms or more.
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, expect

from tests.web.browser import Visit, browsing, program
from tests.web.stage import Stage, delta, saying, staged
from welldone.mock.script import MockReply

LIMIT_MS = 100.0
"""Above this people feel that something sticks."""
BURST = 100
WATCH = """() => {
  window.__tasks = [];
  new PerformanceObserver((list) => window.__tasks.push(...list.getEntries().map((entry) => entry.duration)))
    .observe({ type: "longtask" });
}"""
FIGURES = ("JSHeapUsedSize", "Nodes")


class Cost(NamedTuple):
    """What one stream has cost."""

    longest_ms: float
    tasks: int
    busy_ms: float
    heap_mb: float
    nodes: float


def cases(frames: int) -> Mapping[str, MockReply]:
    """The streams, by what is said of them."""
    words = [f"word {number} " for number in range(frames)]
    paced = saying(*words)
    pieces = tuple(
        piece if number % BURST else delta({"content": "pause "}, after_s=0.02)
        for number, piece in enumerate(paced.pieces, 1)
    )
    block = "".join(f"```python\nprint({number})\n```\n\n" for number in range(200))
    return {
        f"{frames} frames, all at once": paced,
        f"{frames} frames, {BURST} every 20 ms": MockReply(pieces),
        f"{frames} frames of Markdown": saying(*[f"- **{number}** `code`\n" for number in range(frames)]),
        "5 MB without a space, in 80 frames": saying(*["x" * 65536] * 80),
        "200 blocks of code": saying(*[block[at : at + 20] for at in range(0, len(block), 20)]),
    }


def measure(browser: Browser, stage: Stage, reply: MockReply) -> Cost:
    """Ask once, and look at what it cost when the answer is complete."""
    stage.will(reply)
    visit = Visit(browser, stage.server.root)
    try:
        session = visit.context.new_cdp_session(visit.page)
        session.send("Performance.enable")
        visit.page.evaluate(WATCH)
        visit.send("Hello")
        visit.settle()
        expect(visit.total("Frames")).to_have_text(f"{len(reply.pieces):,}")
        # The inspector has then read what the server tells of the upstream, too.
        expect(visit.total("Repairs")).to_have_text("0")
        visit.page.evaluate("() => new Promise((done) => requestIdleCallback(done))")
        tasks: list[float] = visit.page.evaluate("window.__tasks")
        session.send("HeapProfiler.collectGarbage")
        told = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        heap, nodes = (told[name] for name in FIGURES)
        return Cost(max(tasks, default=0.0), len(tasks), sum(tasks), heap / 1e6, nodes)
    finally:
        visit.close()


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description="What long streams cost the page.")
    parser.add_argument("--frames", type=int, default=10_000, help="frames of a long stream (10000)")
    frames: int = parser.parse_args().frames
    if program() is None:
        raise SystemExit("no Chromium here: install the system's package chromium")
    print(f"{'stream':42} {'longest':>10} {'tasks':>6} {'busy':>10} {'heap':>8} {'nodes':>7}")
    with tempfile.TemporaryDirectory() as folder, staged(Path(folder)) as stage, browsing() as browser:
        for name, reply in cases(frames).items():
            cost = measure(browser, stage, reply)
            mark = "" if cost.longest_ms <= LIMIT_MS else f"  above {LIMIT_MS:.0f} ms"
            print(
                f"{name:42} {cost.longest_ms:>7.0f} ms {cost.tasks:>6} {cost.busy_ms:>7.0f} ms"
                f" {cost.heap_mb:>5.0f} MB {cost.nodes:>7.0f}{mark}"
            )


if __name__ == "__main__":
    main()
