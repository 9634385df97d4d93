"""Every example of docs/python.md runs."""

import asyncio
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from welldone import assert_valid

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(EXAMPLES[number], f"docs/python.md, example {number + 1}", "exec"), {})


def test_every_example_but_the_server_checks_something() -> None:
    assert [number for number, code in enumerate(EXAMPLES) if "assert" not in code] == [_server_example()]


def _server_example() -> int:
    (number,) = [number for number, code in enumerate(EXAMPLES) if "import web" in code]
    return number


def test_the_server_of_the_examples_sends_a_right_stream() -> None:
    names: dict[str, Any] = {}
    exec(EXAMPLES[_server_example()], names)
    request = {"model": "my-model", "messages": [], "stream": True}

    async def post() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", names["chat_completions"])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=request) as response:
            await response.read()
            assert_valid(response, request=request, strict=True)
        await runner.cleanup()

    asyncio.run(post())


def test_links_to_other_pages_exist() -> None:
    for target in re.findall(r"\]\((?!http|#)([^)#]+)", PAGE):
        assert (ROOT / "docs" / target).exists()
