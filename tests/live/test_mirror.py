"""Traffic mirroring with workers, in front of a real engine that answers both requests."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import LINUX, chat_once, metric
from tests.support.raw import fetch
from tests.support.server import Running, serving
from tests.support.upstream import eventually

pytestmark = [LINUX, pytest.mark.tier2]


def comparisons(server: Running) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(fetch(server, "/admin/mirror").trace.body)["data"]
    return found


def test_the_same_engine_gives_the_same_answer_to_both(tmp_path: Path, tiny_server: Running) -> None:
    settings = f'url = "{tiny_server.url}"\nkey = "{tiny_server.key}"'
    text = f'[upstreams.old]\n{settings}\nmodels = ["tiny"]\nmirror = "new@100%"\n[upstreams.new]\n{settings}\n'
    (tmp_path / "welldone.toml").write_text(text + 'models = ["candidate"]\n')
    with serving(["--workers", "2"], model="tiny", folder=tmp_path, is_awaited=False) as server:
        answers = {chat_once(server, "Hello", max_tokens=8).text for _ in range(6)}
        assert len(answers) == 1
        eventually(lambda: len(comparisons(server)) == 6)  # of both workers
        for one in comparisons(server):
            assert one["outcome"] == "identical", one
            assert one["reply"]["characters"] == one["mirrored"]["characters"] == len(answers.copy().pop())
            assert one["reply"]["findings"] == one["mirrored"]["findings"] == {}
        assert metric(server, 'welldone_mirror_total{outcome="identical",upstream="new"}') == 6
        server.log.wait("mirrored .*upstream=old mirror=new outcome=identical")
        assert server.end() == 0
        assert str(tiny_server.key) not in server.log.join()
