"""Lifecycle of a pod without a cluster: the server with the settings of the ConfigMap, the test as kubelet."""

import http.client
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.deploy.manifests import TOML, Json, applied, of_kind, variables
from tests.support.faults import LINUX, start_chat, wait_until_refused
from tests.support.raw import CHAT, LIMIT_S, fetch, parse_valid
from tests.support.server import Running, serving
from tests.support.upstream import DONE, ROLE, STOP, TEXT, Upstream, upstream
from welldone.mock.script import MockChunk, MockReply

pytestmark = LINUX

SPEC = of_kind(applied(), "Deployment")["welldone"]["spec"]["template"]["spec"]
(CONTAINER,) = SPEC["containers"]
SLOW = MockReply((ROLE, TEXT, *[MockChunk(TEXT.text, after_s=0.05)] * 20, STOP, DONE))
KEYS = {name: f"{name.lower()}-0123456789abcdef" for name in variables(TOML.read_text())}
STREAMS = 6


class Pod(NamedTuple):
    """The server, and its vLLM upstreams."""

    server: Running
    upstreams: list[Upstream]

    def probe(self, kind: str) -> bool:
        """Probe as the kubelet does: without a key, on a new connection."""
        get: Json = CONTAINER[kind]["httpGet"]
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=LIMIT_S)
        try:
            connection.request("GET", get["path"], headers={"User-Agent": "kube-probe/1.37", "Connection": "close"})
            return 200 <= connection.getresponse().status < 400
        except ConnectionError:
            return False
        finally:
            connection.close()

    def wait_for(self, kind: str, *, succeeds: bool) -> None:
        """Probe until the result is as given."""
        deadline = time.monotonic() + LIMIT_S
        while self.probe(kind) is not succeeds:
            assert time.monotonic() < deadline, f"{kind} never changed"


@contextmanager
def pod(folder: Path, *, has_upstreams: bool = True) -> Iterator[Pod]:
    """Run the container as in the manifest, with local addresses and a shorter probe interval."""
    with ExitStack() as stack:
        closed_port = stack.enter_context(socket.socket())  # nothing listens here: Redis is unavailable
        closed_port.bind(("127.0.0.1", 0))
        upstreams = [stack.enter_context(upstream(lambda seen: SLOW)) for _ in range(2)]
        text = TOML.read_text().replace('"0.0.0.0"', '"127.0.0.1"').replace("probe_s = 5", "probe_s = 1")
        for number, one in enumerate(upstreams):
            text = text.replace(f"http://vllm-{number}.vllm:8000", f"http://127.0.0.1:{one.port}")
            if not has_upstreams:
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
                environment=KEYS
                | {"REDIS_URL": f"redis://:{KEYS['REDIS_URL']}@127.0.0.1:{closed_port.getsockname()[1]}/0"},
                is_awaited=False,
            )
        )
        server.key = KEYS["TEAM_KEY"]
        yield Pod(server, upstreams)


def test_running_streams_finish_and_new_requests_are_rejected_during_shutdown(tmp_path: Path) -> None:
    with pod(tmp_path) as one, ExitStack() as stack:
        one.wait_for("startupProbe", succeeds=True)
        one.wait_for("readinessProbe", succeeds=True)
        connections = [stack.enter_context(start_chat(one.server, stream=number % 2 == 0)) for number in range(STREAMS)]
        for connection in connections[::2]:
            connection.wait(b"Hello")
        # preStop: requests are served until the pod is removed from the endpoints.
        late = stack.enter_context(start_chat(one.server))
        late.wait(b"Hello")
        assert one.probe("readinessProbe")
        one.server.process.terminate()
        one.wait_for("readinessProbe", succeeds=False)
        wait_until_refused(one.server)
        for connection in [*connections[::2], late]:
            assert parse_valid(connection.reply()).text == "Hello" * 21
        for connection in connections[1::2]:
            assert connection.reply().ok()["choices"][0]["message"]["content"] == "Hello" * 21
        grace_s = SPEC["terminationGracePeriodSeconds"] - CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert one.server.process.wait(grace_s) == 0
        assert "Traceback" not in one.server.log.join()


def test_without_vllm_the_pod_is_not_ready_and_not_restarted(tmp_path: Path) -> None:
    with pod(tmp_path, has_upstreams=False) as one:
        one.wait_for("startupProbe", succeeds=True)
        assert not one.probe("readinessProbe")  # from the start: no probe of an upstream has succeeded
        assert one.probe("livenessProbe")
        one.upstreams[1].start()
        one.wait_for("readinessProbe", succeeds=True)
        with start_chat(one.server) as connection:
            assert parse_valid(connection.reply()).text == "Hello" * 21


def test_the_key_of_prometheus_reads_metrics_and_nothing_else(tmp_path: Path) -> None:
    annotations = of_kind(applied(), "Deployment")["welldone"]["spec"]["template"]["metadata"]["annotations"]
    with pod(tmp_path) as one:
        one.wait_for("readinessProbe", succeeds=True)
        path = annotations["prometheus.io/path"]
        assert fetch(one.server, path, headers={"Authorization": ""}).status == 401
        one.server.key = KEYS["PROMETHEUS_KEY"]
        assert b"welldone_active_streams" in fetch(one.server, path).trace.body
        body = {"model": "scripted", "messages": [{"role": "user", "content": "Hello"}]}
        assert fetch(one.server, CHAT, body).status in (403, 404)


def test_no_secret_is_in_the_log(tmp_path: Path) -> None:
    with pod(tmp_path) as one:
        one.wait_for("readinessProbe", succeeds=True)
        with start_chat(one.server) as connection:
            parse_valid(connection.reply())
        assert one.server.end() == 0
        output = one.server.log.join() + one.server.stdout.join()
        assert "the store of shared limits and keys is unavailable" in output
        assert [secret for secret in KEYS.values() if secret in output] == []
