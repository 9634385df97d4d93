"""Cost of long streams for the page: longest tasks of the browser, and memory.

Chromium opens the page with the inspector and sends a request to a scripted upstream through the gateway. A long task
(50 ms or more, W3C Long Tasks) blocks mouse and keyboard events.
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
"""Longer tasks are noticeable (RAIL: respond within 100 ms)."""
BURST = 100
WATCH = """() => {
  window.__tasks = [];
  new PerformanceObserver((list) => window.__tasks.push(...list.getEntries().map((entry) => entry.duration)))
    .observe({ type: "longtask" });
}"""
FIGURES = ("JSHeapUsedSize", "Nodes")


class Cost(NamedTuple):
    """Cost of one stream in the browser."""

    longest_ms: float
    tasks: int
    busy_ms: float
    heap_mb: float
    nodes: float


def cases(frames: int) -> Mapping[str, MockReply]:
    """Return the streams by description."""
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
    """Send one request and read the cost when the answer is complete."""
    stage.set_replies(reply)
    visit = Visit(browser, stage.server.root)
    try:
        session = visit.context.new_cdp_session(visit.page)
        session.send("Performance.enable")
        visit.page.evaluate(WATCH)
        visit.send("Hello")
        visit.settle()
        expect(visit.total("Frames")).to_have_text(f"{len(reply.pieces):,}")
        # By then the inspector has also fetched the capture of the upstream.
        expect(visit.total("Repairs")).to_have_text("0")
        visit.page.evaluate("() => new Promise((done) => requestIdleCallback(done))")
        tasks: list[float] = visit.page.evaluate("window.__tasks")
        session.send("HeapProfiler.collectGarbage")
        metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        heap, nodes = (metrics[name] for name in FIGURES)
        return Cost(max(tasks, default=0.0), len(tasks), sum(tasks), heap / 1e6, nodes)
    finally:
        visit.close()


def main() -> None:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description="Measure the web page while it renders long streams.")
    parser.add_argument("--frames", type=int, default=10_000, help="frames of a long stream (10000)")
    frames: int = parser.parse_args().frames
    if program() is None:
        raise SystemExit("Chromium not found: apt-get install chromium")
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
