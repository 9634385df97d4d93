"""Runs the examples of docs/asgi.md one after the other, and sends a request to each application that they define.

`python -m tests.asgi.asgi_page` runs all of them in `.venv-frameworks`, which has the frameworks.
"""

import asyncio
import inspect
import json
import re
from pathlib import Path
from typing import Any

from welldone import lint
from welldone.http.address import parse_url
from welldone.http.asgi_server import InProcessServer
from welldone.http.recording_client import record_response

PAGE = Path(__file__).parents[2] / "docs" / "asgi.md"
EXAMPLES: list[str] = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
REQUEST = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


def run_examples(examples: list[str], names: dict[str, Any]) -> int:
    """Run examples in one namespace; return the number of applications that answered correctly."""
    checked = 0
    names["__name__"] = "__main__"  # Litestar looks it up
    for number, example in enumerate(examples, 1):
        names.pop("app", None)
        exec(compile(example, f"docs/asgi.md, example {number}", "exec"), names)
        for name, value in list(names.items()):
            if name.startswith("test_") and inspect.isfunction(value):
                value()
        if "app" in names:
            findings = lint(_post(names["app"]), request=REQUEST).findings
            assert findings == (), (number, findings)
            checked += 1
    return checked


def _post(app: Any) -> bytes:  # noqa: ANN401 - of any framework
    if hasattr(app, "wsgi_app"):
        data: bytes = app.test_client().post("/v1/chat/completions", json=REQUEST).data
        return data

    async def work() -> bytes:
        async with InProcessServer(app) as server:
            body = json.dumps(REQUEST).encode()
            address = parse_url("http://localhost/v1")
            return (await record_response(address, "POST", "/chat/completions", body=body, connect=server.connect)).body

    return asyncio.run(work())


if __name__ == "__main__":
    assert run_examples(EXAMPLES, {}) == 5
