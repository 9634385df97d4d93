"""A real Chromium in front of a real server: what the page shows, and all that it complains of or asks for."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request, expect, sync_playwright

Size: TypeAlias = tuple[int, int]

LIMIT_MS = 60_000
"""No wait takes that long, also on a busy machine: a hang is a failure."""
DESKTOP: Size = (1280, 800)
PHONE: Size = (390, 844)
HOME = Path(__file__).parent
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # Whatever the browser itself wants from elsewhere, it gets nothing.
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
_TELL_VIOLATIONS = """addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy violated: ${event.violatedDirective} by ${event.blockedURI} ${event.sample}`));"""
_DANGEROUS = ("error", "warning", "assert")

expect.set_options(timeout=LIMIT_MS)


def program() -> str | None:
    """Where the system's Chromium is; None where there is none."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser that nobody sees. While it is there, this thread has a running event loop, so that no other can run."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """One person's look at the page, with storage of its own."""

    def __init__(self, browser: Browser, origin: str, *, size: Size = DESKTOP, is_dark: bool = False) -> None:
        self.origin = origin
        self.messages: list[str] = []
        """What the console showed that should not be."""
        self.urls: list[str] = []
        self._allowed: list[str] = []
        width, height = size
        self.context: BrowserContext = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if is_dark else "light",
            reduced_motion="reduce",
            permissions=["clipboard-read", "clipboard-write"],
        )
        self.context.set_default_timeout(LIMIT_MS)
        self.context.add_init_script(_TELL_VIOLATIONS)
        self.context.on("console", self._said)
        self.context.on("weberror", lambda error: self.messages.append(f"uncaught: {error.error}"))
        self.context.on("request", self._asked)
        self.page: Page = self.context.new_page()
        self.open()

    def open(self, path: str = "/") -> None:
        """Go to the page, as for the first time."""
        self.page.goto(self.origin + path)
        self.page.get_by_role("button", name="Inspector", exact=True).wait_for()

    def allow(self, pattern: str) -> None:
        """The console may show this: browsers write a line there for every reply that is an error."""
        self._allowed.append(pattern)

    def complaints(self) -> list[str]:
        """All that should not have been: messages on the console, broken policies, requests to others."""
        shown = [text for text in self.messages if not any(re.search(pattern, text) for pattern in self._allowed)]
        strange = [f"asked for {url}" for url in self.urls if not url.startswith((f"{self.origin}/", "blob:"))]
        return shown + strange

    def close(self) -> None:
        """Leave, and forget all."""
        self.context.close()

    # The parts that most tests use, by the names that a screen reader says.

    @property
    def chat(self) -> Locator:
        """The playground."""
        return self.page.get_by_role("region", name="Chat")

    @property
    def inspector(self) -> Locator:
        """What came over the wire."""
        return self.page.get_by_role("complementary", name="Stream inspector")

    @property
    def server(self) -> Locator:
        """The state of the server."""
        return self.page.get_by_role("region", name="Server", exact=True)

    @property
    def message(self) -> Locator:
        """Where people write."""
        return self.chat.get_by_role("textbox", name="Message", exact=True)

    def articles(self, name: str) -> Locator:
        """The messages of one side: You, Assistant, System or Tool."""
        return self.chat.get_by_role("log", name="Messages").get_by_role("article", name=name, exact=True)

    @property
    def answer(self) -> Locator:
        """The newest answer."""
        return self.articles("Assistant").last

    def send(self, text: str) -> None:
        """Write a message, and send it, as soon as there is a model for it."""
        expect(self.chat.get_by_role("combobox", name="Model", exact=True)).to_be_enabled()
        self.message.fill(text)
        self.chat.get_by_role("button", name="Send", exact=True).click()
        expect(self.message).to_have_value("")

    def settle(self) -> None:
        """Wait until no answer is under way."""
        self.chat.get_by_role("button", name="Send", exact=True).wait_for()

    def choose_model(self, name: str) -> None:
        """Pick the model that answers next."""
        self.chat.get_by_role("combobox", name="Model", exact=True).select_option(name)

    def tab(self, name: str) -> Locator:
        """Turn to a tab of the inspector; its panel."""
        self.inspector.get_by_role("tab", name=name).click()
        return self.inspector.get_by_role("tabpanel").first

    def total(self, name: str) -> Locator:
        """One of the figures that the inspector has of an exchange."""
        return self.inspector.get_by_role("group", name="Totals").locator(f"dt:text-is('{name}') + dd")

    def go(self, view: str) -> None:
        """Turn to a view: Chat or Server."""
        self.page.get_by_role("navigation", name="Views").get_by_text(view, exact=True).click()

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in _DANGEROUS:
            self.messages.append(f"{message.type}: {message.text}")

    def _asked(self, request: Request) -> None:
        self.urls.append(request.url)
