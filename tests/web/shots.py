"""Screenshots of the page for the documentation: `make shots`. They are not compared in tests."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.models import tiny
from tests.support.faults import start_chat
from tests.support.server import Running, serving
from tests.support.upstream import upstream
from tests.web.browser import PHONE, Size, Visit, browsing, program
from tests.web.stage import STOP, delta, usage
from welldone.mock.script import MockChunk, MockReply, json_reply

IMAGES = Path(__file__).parents[2] / "docs" / "images"
DESKTOP: Size = (1280, 960)
"""High enough for the charts and for the bytes of a frame."""
QUESTION = "How do I read a stream in Python?"
ANSWER = """Iterate over it: each **chunk** is a small piece of the answer.

```python
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8080/v1")
stream = client.chat.completions.create(
    model="llama-3.2-3b",
    messages=[{"role": "user", "content": "Hi"}],
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="")
```

The last chunk has a `finish_reason`; with `stream_options` one more has the usage."""
ROUNDS = 12
"""Polls of the server view, so that its charts have data."""


def flawed() -> MockReply:
    """An answer from a server that repeats the role, stalls once and sends no `[DONE]`."""
    words = ANSWER.split(" ")
    thoughts = [
        delta({"role": "assistant", "reasoning_content": text}, after_s=0.3) for text in ("They ", "want code.")
    ]
    pieces = [
        delta({"role": "assistant", "content": f"{word} "}, after_s=0.4 if place == 12 else 0.02)
        for place, word in enumerate(words)
    ]
    return MockReply((MockChunk(": ping\n\n"), *thoughts, *pieces, STOP, usage(17, 96)))


@contextmanager
def shown() -> Iterator[Running]:
    """A server with a local model, an upstream with violations, and one that is down."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tiny.chat_model().write(folder / "tiny.gguf")
        good = stack.enter_context(upstream(lambda _: flawed()))
        bad = stack.enter_context(upstream(lambda _: json_reply({"error": {"message": "out of memory"}}, 503)))
        tables = [
            f'[models.tiny]\nfile = "{folder}/tiny.gguf"\nthreads = 1\nctx_size = 4096\nparallel = 4',
            f'[upstreams.vllm]\nurl = "{good.url}"\nmodels = ["llama-3.2-3b", "qwen3-8b"]\nprobe_s = 0',
            f'[upstreams.spare]\nurl = "{bad.url}"\nmodels = ["llama-3.2-3b"]\nprobe_s = 0',
        ]
        (folder / "welldone.toml").write_text("\n\n".join(tables))
        yield stack.enter_context(serving([], key=None, folder=folder, is_awaited=False))


def chat(visit: Visit) -> None:
    """One answer with a repaired frame."""
    visit.choose_model("llama-3.2-3b")
    visit.send(QUESTION)
    expect(visit.answer).to_contain_text("one more has the usage")
    visit.settle()


def take(visit: Visit, name: str) -> None:
    """Take a screenshot. pngquant, if installed, reduces it to a third of the size."""
    path = IMAGES / f"{name}.png"
    visit.page.screenshot(path=path, animations="disabled", caret="hide", scale="css")
    if shutil.which("pngquant"):
        subprocess.run(["pngquant", "--force", "--strip", "--output", path, path], check=True)


def choose_frame(visit: Visit) -> None:
    """Select a repaired frame."""
    visit.open_inspector()
    # The last repair: the whole capture has arrived by then.
    expect(visit.tab("Repairs").get_by_role("button", name="end-done-sent")).to_be_visible()
    visit.tab("Frames")
    visit.inspector.get_by_role("grid", name="Frames", exact=True).focus()
    for key in ("Home", "ArrowDown", "ArrowDown", "ArrowDown"):
        visit.page.keyboard.press(key)
    expect(visit.inspector.get_by_role("button", name="delta-role-once").first).to_be_visible()
    visit.page.evaluate("document.activeElement.blur()")


def compare(visit: Visit) -> None:
    """The same prompt, direct and through welldone."""
    close_inspector(visit)
    visit.go("Compare")
    view = visit.page.get_by_role("region", name="Compare", exact=True)
    view.get_by_label("Model", exact=True).select_option("qwen3-8b")  # of one upstream
    view.get_by_label("Prompt", exact=True).fill(QUESTION)
    view.get_by_role("button", name="Compare", exact=True).click()
    expect(view).to_contain_text("Both columns have the same text.")
    visit.page.evaluate("document.activeElement.blur()")


def close_inspector(visit: Visit) -> None:
    """Close the inspector, if it is open."""
    button = visit.page.get_by_role("button", name="Inspector", exact=True)
    if button.get_attribute("aria-pressed") == "true":
        button.click()


def watch_server(visit: Visit, server: Running) -> None:
    """The server view, after some requests."""
    close_inspector(visit)
    with visit.page.expect_response("**/metrics"):
        visit.go("Server")
    for place in range(ROUNDS):
        for _ in range(1 + place % 4):
            with start_chat(server, model="tiny", max_tokens=32) as line:
                line.reply()
        with start_chat(server, model="llama-3.2-3b") as line, visit.page.expect_response("**/metrics"):
            line.reply()


def take_desktop(visit: Visit, server: Running, theme: str) -> None:
    """Desktop: the inspector is beside the chat."""
    chat(visit)
    choose_frame(visit)
    take(visit, f"inspector-{theme}")
    compare(visit)
    take(visit, f"compare-{theme}")
    watch_server(visit, server)
    take(visit, f"server-{theme}")


def take_phone(visit: Visit, server: Running, theme: str) -> None:
    """Phone: the inspector covers the chat; one screenshot of each."""
    chat(visit)
    take(visit, f"phone-chat-{theme}")
    if theme == "dark":
        choose_frame(visit)
        take(visit, f"phone-inspector-{theme}")
    else:
        watch_server(visit, server)
        take(visit, f"phone-server-{theme}")


def main() -> None:
    """Run as a program."""
    if program() is None:
        raise SystemExit("no Chromium here: install the system's package chromium")
    IMAGES.mkdir(exist_ok=True)
    with shown() as server, browsing() as browser:
        for is_dark in (False, True):
            take_all(browser, server, "dark" if is_dark else "light", is_dark=is_dark)


def take_all(browser: Browser, server: Running, theme: str, *, is_dark: bool) -> None:
    """All screenshots of one theme."""
    for size, picture in ((DESKTOP, take_desktop), (PHONE, take_phone)):
        visit = Visit(browser, server.root, size=size, is_dark=is_dark)
        try:
            picture(visit, server, theme)
        finally:
            visit.close()


if __name__ == "__main__":
    main()
