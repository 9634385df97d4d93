"""A pod's life without a cluster: the server with the settings of the ConfigMap, and the test as its kubelet."""

import http.client
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.deploy.manifests import TOML, Json, applied, of_kind, variables
from tests.live.faults import LINUX, begin, until_refused
from tests.live.raw import CHAT, LIMIT_S, ask, judged
from tests.live.server import Running, serving
from tests.live.upstream import DONE, ROLE, STOP, TEXT, Upstream, upstream
from welldone.mock.script import MockChunk, MockReply

pytestmark = LINUX

SPEC = of_kind(applied(), "Deployment")["welldone"]["spec"]["template"]["spec"]
(CONTAINER,) = SPEC["containers"]
SLOW = MockReply((ROLE, TEXT, *[MockChunk(TEXT.text, after_s=0.05)] * 20, STOP, DONE))
KEYS = {name: f"{name.lower()}-0123456789abcdef" for name in variables(TOML.read_text())}
STREAMS = 6


class Pod(NamedTuple):
    """What runs in it, and the servers of vLLM that it asks."""

    server: Running
    behind: list[Upstream]

    def probe(self, kind: str) -> bool:
        """Whether the kubelet takes it for well: a request without a key, over a connection of its own."""
        get: Json = CONTAINER[kind]["httpGet"]
        line = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=LIMIT_S)
        try:
            line.request("GET", get["path"], headers={"User-Agent": "kube-probe/1.37", "Connection": "close"})
            return 200 <= line.getresponse().status < 400
        except ConnectionError:
            return False
        finally:
            line.close()

    def until(self, kind: str, *, is_well: bool) -> None:
        """Probe until it is so."""
        deadline = time.monotonic() + LIMIT_S
        while self.probe(kind) is not is_well:
            assert time.monotonic() < deadline, f"{kind} never changed"


@contextmanager
def pod(folder: Path, *, is_behind: bool = True) -> Iterator[Pod]:
    """The container as the manifest starts it. Only addresses differ, and looks come sooner."""
    with ExitStack() as stack:
        away = stack.enter_context(socket.socket())  # nobody listens there: Redis is away
        away.bind(("127.0.0.1", 0))
        behind = [stack.enter_context(upstream(lambda seen: SLOW)) for _ in range(2)]
        text = TOML.read_text().replace('"0.0.0.0"', '"127.0.0.1"').replace("probe_s = 5", "probe_s = 1")
        for number, one in enumerate(behind):
            text = text.replace(f"http://vllm-{number}.vllm:8000", f"http://127.0.0.1:{one.port}")
            if not is_behind:
                one.stop()
        assert not re.search(r"vllm:|0\.0\.0\.0|probe_s = 5", text)
        (folder / "welldone.toml").write_text(text)
        command, *rest = CONTAINER["args"]
        assert [command, rest] == ["serve", ["--config", "/etc/welldone/welldone.toml"]]
        server = stack.enter_context(
            serving(
                ["--config", str(folder / "welldone.toml")],
                model="scripted",
                key=None,
                environment=KEYS | {"REDIS_URL": f"redis://:{KEYS['REDIS_URL']}@127.0.0.1:{away.getsockname()[1]}/0"},
                is_awaited=False,
            )
        )
        server.key = KEYS["TEAM_KEY"]
        yield Pod(server, behind)


def test_running_streams_finish_and_new_ones_go_elsewhere(tmp_path: Path) -> None:
    with pod(tmp_path) as one, ExitStack() as stack:
        one.until("startupProbe", is_well=True)
        one.until("readinessProbe", is_well=True)
        lines = [stack.enter_context(begin(one.server, stream=number % 2 == 0)) for number in range(STREAMS)]
        for line in lines[::2]:
            line.wait(b"Hello")
        # preStop: who has not heard yet that the pod goes is served as before.
        late = stack.enter_context(begin(one.server))
        late.wait(b"Hello")
        assert one.probe("readinessProbe")
        one.server.process.terminate()
        one.until("readinessProbe", is_well=False)
        until_refused(one.server)
        for line in [*lines[::2], late]:
            assert judged(line.reply()).text == "Hello" * 21
        for line in lines[1::2]:
            assert line.reply().ok()["choices"][0]["message"]["content"] == "Hello" * 21
        grace_s = SPEC["terminationGracePeriodSeconds"] - CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert one.server.process.wait(grace_s) == 0
        assert "Traceback" not in one.server.log.join()


def test_it_is_not_ready_without_vllm_and_is_not_restarted_for_it(tmp_path: Path) -> None:
    with pod(tmp_path, is_behind=False) as one:
        one.until("startupProbe", is_well=True)
        assert not one.probe("readinessProbe")  # from the beginning: no look has found anybody
        assert one.probe("livenessProbe")
        one.behind[1].start()
        one.until("readinessProbe", is_well=True)
        with begin(one.server) as line:
            assert judged(line.reply()).text == "Hello" * 21


def test_prometheus_reads_the_metrics_with_its_key_and_can_do_nothing_else(tmp_path: Path) -> None:
    annotations = of_kind(applied(), "Deployment")["welldone"]["spec"]["template"]["metadata"]["annotations"]
    with pod(tmp_path) as one:
        one.until("readinessProbe", is_well=True)
        path = annotations["prometheus.io/path"]
        assert ask(one.server, path, headers={"Authorization": ""}).status == 401
        one.server.key = KEYS["PROMETHEUS_KEY"]
        assert b"welldone_active_streams" in ask(one.server, path).trace.body
        body = {"model": "scripted", "messages": [{"role": "user", "content": "Hello"}]}
        assert ask(one.server, CHAT, body).status in (403, 404)


def test_no_secret_is_in_the_log(tmp_path: Path) -> None:
    with pod(tmp_path) as one:
        one.until("readinessProbe", is_well=True)
        with begin(one.server) as line:
            judged(line.reply())
        assert one.server.end() == 0
        said = one.server.log.join() + one.server.said.join()
        assert "the store of shared limits and keys is away" in said
        assert [secret for secret in KEYS.values() if secret in said] == []
