"""Chromium with the page of a real server: helpers, console messages, CSP violations and requested URLs."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request, expect, sync_playwright

Size: TypeAlias = tuple[int, int]

LIMIT_MS = 60_000
"""Timeout of every wait, enough on a busy machine."""
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
    # The browser itself must not reach other hosts.
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
_REPORT_VIOLATIONS = """addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy violated: ${event.violatedDirective} by ${event.blockedURI} ${event.sample}`));"""
_DANGEROUS = ("error", "warning", "assert")

expect.set_options(timeout=LIMIT_MS)


def program() -> str | None:
    """Return the path of the system's Chromium, or None."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


@contextmanager
def browsing() -> Iterator[Browser]:
    """Start a headless browser. Until it is closed, its event loop runs in this thread, so that no other can."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """The page in a browser context of its own."""

    def __init__(self, browser: Browser, origin: str, *, size: Size = DESKTOP, is_dark: bool = False) -> None:
        self.origin = origin
        self.messages: list[str] = []
        """Errors and warnings on the console."""
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
        self.context.add_init_script(_REPORT_VIOLATIONS)
        self.context.on("console", self._on_console)
        self.context.on("weberror", lambda error: self.messages.append(f"uncaught: {error.error}"))
        self.context.on("request", self._on_request)
        self.page: Page = self.context.new_page()
        self.open()

    def open(self, path: str = "/") -> None:
        """Load the page."""
        self.page.goto(self.origin + path)
        self.page.get_by_role("button", name="Inspector", exact=True).wait_for()

    def allow(self, pattern: str) -> None:
        """Allow a console message: browsers log every error response."""
        self._allowed.append(pattern)

    def complaints(self) -> list[str]:
        """Return unexpected console messages, CSP violations and requests to other hosts."""
        shown = [text for text in self.messages if not any(re.search(pattern, text) for pattern in self._allowed)]
        strange = [f"requested {url}" for url in self.urls if not url.startswith((f"{self.origin}/", "blob:"))]
        return shown + strange

    def close(self) -> None:
        """Close the context."""
        self.context.close()

    # Parts of the page by accessible name.

    @property
    def chat(self) -> Locator:
        """The chat view."""
        return self.page.get_by_role("region", name="Chat")

    @property
    def inspector(self) -> Locator:
        """The stream inspector."""
        return self.page.get_by_role("complementary", name="Stream inspector")

    @property
    def server(self) -> Locator:
        """The server view."""
        return self.page.get_by_role("region", name="Server", exact=True)

    @property
    def message(self) -> Locator:
        """The message input."""
        return self.chat.get_by_role("textbox", name="Message", exact=True)

    def articles(self, name: str) -> Locator:
        """The messages of an author: You, Assistant, System or Tool."""
        return self.chat.get_by_role("log", name="Messages").get_by_role("article", name=name, exact=True)

    @property
    def answer(self) -> Locator:
        """The latest answer."""
        return self.articles("Assistant").last

    def send(self, text: str) -> None:
        """Send a message as soon as a model is available."""
        expect(self.chat.get_by_role("combobox", name="Model", exact=True)).to_be_enabled()
        self.message.fill(text)
        self.chat.get_by_role("button", name="Send", exact=True).click()
        expect(self.message).to_have_value("")

    def settle(self) -> None:
        """Wait until no answer is running."""
        self.chat.get_by_role("button", name="Send", exact=True).wait_for()

    def choose_model(self, name: str) -> None:
        """Select a model."""
        self.chat.get_by_role("combobox", name="Model", exact=True).select_option(name)

    def open_inspector(self) -> None:
        """Open the inspector, unless it is open."""
        button = self.page.get_by_role("button", name="Inspector", exact=True)
        if button.get_attribute("aria-pressed") == "false":
            button.click()

    def tab(self, name: str) -> Locator:
        """Open a tab of the inspector and return its panel."""
        self.open_inspector()
        self.inspector.get_by_role("tab", name=name).click()
        return self.inspector.get_by_role("tabpanel").first

    def total(self, name: str) -> Locator:
        """One of the totals in the inspector."""
        self.open_inspector()
        return self.inspector.get_by_role("group", name="Totals").locator(f"dt:text-is('{name}') + dd")

    def go(self, view: str) -> None:
        """Open a view: Chat or Server."""
        self.page.get_by_role("navigation", name="Views").get_by_text(view, exact=True).click()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in _DANGEROUS:
            self.messages.append(f"{message.type}: {message.text}")

    def _on_request(self, request: Request) -> None:
        self.urls.append(request.url)
