"""The coding agent Codex: one turn, through its command line."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

HOME = Path(__file__).parent
LIMIT_S = 300.0
"""A turn takes a second; the rest is for a busy machine."""


class Turn(NamedTuple):
    """What Codex shows of one turn."""

    messages: tuple[str, ...]
    input_tokens: int
    output_tokens: int


def why_missing() -> str | None:
    """Return why Codex cannot run; None if it can."""
    if shutil.which("node") is None:
        return "no node here"
    return None if (HOME / "node_modules").is_dir() else "run: npm ci --prefix tests/oracle/codex"


def run_turn(
    base_url: str,
    key: str,
    model: str,
    prompt: str,
    *,
    folder: Path,
    uses_socket: bool = False,
    is_default: bool = False,
) -> Turn:
    """Send a prompt to a server that speaks Responses, and return what Codex shows.

    The server is a provider of its own, over HTTP or a WebSocket, without the web search of OpenAI's servers; or, with
    `is_default`, it stands for OpenAI's, and Codex chooses how to connect and which tools to offer.
    """
    fields = f'name="local",base_url="{base_url}",wire_api="responses",env_key="LOCAL_KEY"'
    provider = f"model_providers.local={{{fields},supports_websockets={str(uses_socket).lower()}}}"
    own = [provider, 'model_provider="local"', 'web_search="disabled"']
    settings = [f'openai_base_url="{base_url}"'] if is_default else own
    settings += ["analytics.enabled=false", "check_for_update_on_startup=false"]
    words = [str(HOME / "node_modules/.bin/codex"), "exec", "--json", "--skip-git-repo-check"]
    words += ["--sandbox", "read-only", "--cd", str(folder), "--model", model]
    words += [word for setting in settings for word in ("--config", setting)]
    done = subprocess.run(
        [*words, prompt],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "CODEX_HOME": str(folder)}
        | {"CODEX_API_KEY" if is_default else "LOCAL_KEY": key},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    events = [json.loads(line) for line in done.stdout.splitlines()]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    (usage,) = (event["usage"] for event in events if event["type"] == "turn.completed")
    texts = tuple(item["text"] for item in items if item["type"] == "agent_message")
    return Turn(texts, usage["input_tokens"], usage["output_tokens"])
