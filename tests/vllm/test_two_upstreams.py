"""Two vLLM servers behind the gateway, one of which is killed: the other one continues its answer."""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.faults import LINUX, metric, start_chat
from tests.support.raw import RawConnection, parse_valid
from tests.support.server import Lines, Running, serving
from tests.vllm.conftest import command

pytestmark = LINUX

QUESTION = "Count from 1 to 40."
"""The next token is never a close decision: a prefill is processed at once, which changes the last bits of numbers."""
TOKENS = 96
KILLED_AFTER = 30
"""Chunks with text."""


class VllmProcess:
    """vLLM with its child processes."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port: int = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        self.process = subprocess.Popen(
            command("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "smollm2"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.log = Lines(self.process.stdout)

    def kill(self) -> None:
        """Kill all its processes."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def running_vllm(environment: Mapping[str, str]) -> Iterator[VllmProcess]:
    process = VllmProcess(environment)
    try:
        yield process
    finally:
        if process.process.returncode is None:
            process.kill()


def ask(gateway: Running) -> RawConnection:
    usage = {"include_usage": True}
    return start_chat(gateway, QUESTION, max_tokens=TOKENS, ignore_eos=True, stream_options=usage)


def test_an_answer_goes_on_at_another_vllm(vllm_environment: dict[str, str], tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(running_vllm(vllm_environment)) for _ in range(2))
        for process in (first, second):
            process.log.wait("Application startup complete")
        config = tmp_path / "welldone.toml"
        weights = {"first": (first, 1000.0), "second": (second, 0.01)}
        tables = [
            f"[upstreams.{name}]\nurl = {json.dumps(process.url)}\nweight = {weight}\n"
            for name, (process, weight) in weights.items()
        ]
        config.write_text("".join(tables))
        gateway = stack.enter_context(serving(["--config", str(config)], model="smollm2", is_awaited=False))
        with ask(gateway) as connection:
            expected = parse_valid(connection.reply())
        assert (expected.choice.finish, expected.counts[1]) == ("length", TOKENS)
        with ask(gateway) as connection:
            while len(re.findall(rb'"content":"[^"]', connection.received)) < KILLED_AFTER:
                assert connection.read(), connection.received[-500:]
            first.kill()
            answer = parse_valid(connection.reply())
        assert answer.choices == expected.choices
        assert answer.counts == expected.counts
        assert metric(gateway, 'welldone_continuations_total{outcome="complete",way="prefill"}') == 1
        with ask(gateway) as connection:
            assert parse_valid(connection.reply()).text == expected.text  # from the other one alone
