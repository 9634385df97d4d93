"""`welldone check --prescribe`: its output, its report, and a gateway that is started with the printed table."""

import json
import signal
import threading
import tomllib
from pathlib import Path

from tests.check.background import served
from tests.check.serving import rewriting_reply
from tests.check.test_prescription import KEY, cut_arguments
from tests.cli.live import Live
from tests.cli.run import Run, run
from tests.http.aio import LIMIT_S
from tests.server.test_reasoning_input import TOOL
from tests.support.raw import chat, fetch
from tests.support.server import serving
from tests.support.upstream import eventually
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest

FEW = ("--only", "text,tools,models")


def test_the_printed_table_makes_a_gateway_whose_streamed_tool_calls_are_right(tmp_path: Path) -> None:
    with served(rewriting_reply(ReferenceServer(key=KEY).answer, cut_arguments)) as url:
        ran = run("check", url, *FEW, "--prescribe", "--api-key", "env:MY_KEY", cwd=tmp_path, MY_KEY=KEY)
        shown = ran.out.decode()
        assert ran.code == 1  # the verdict on the server
        assert "1 broken rule → 0" in shown
        assert KEY not in shown
        table = shown[shown.index("[upstreams.") : shown.index("\n\n1 broken rule")]
        (tmp_path / "welldone.toml").write_text(table)
        ((_, settings),) = tomllib.loads(table)["upstreams"].items()
        assert settings == {"url": url, "key": "env:MY_KEY", "stream": "no-tools"}
        assert run("serve", "--check-config", cwd=tmp_path, MY_KEY=KEY).code == 0
        with serving(
            [], model="ideal", key=None, folder=tmp_path, environment={"MY_KEY": KEY}, is_awaited=False
        ) as gateway:
            eventually(lambda: b'"ideal"' in fetch(gateway, "/models").trace.body)
            reply = chat(gateway, "Hi", stream=True, tools=[TOOL], tool_choice="required")
            assert [json.loads(arguments) for _, arguments in reply.choices[0].calls]


def test_the_json_report_has_the_prescription(here: Run) -> None:
    with served() as url:
        ran = here("check", url, *FEW, "--prescribe", "--json")
        prescription = json.loads(ran.out)["prescription"]
        assert prescription["toml"][1:] == [f'url = "{url}"']
        assert prescription["after"] == prescription["unjudged"] == []
        assert json.loads(here("check", url, *FEW, "--json").out)["prescription"] is None


def test_the_table_survives_ctrl_c_in_the_second_check(tmp_path: Path) -> None:
    reference, has_begun = ReferenceServer(), threading.Event()

    def answer(http_request: MockHttpRequest) -> MockReply:
        agents = [value for name, value in http_request.headers.items() if name.lower() == "user-agent"]
        if http_request.method == "POST" and not any("check" in agent for agent in agents):  # of the gateway
            has_begun.set()
            return MockReply(end="hang")
        return reference.answer(http_request)

    with served(answer) as url, Live("check", url, *FEW, "--prescribe", cwd=tmp_path) as command:
        assert has_begun.wait(LIMIT_S)
        command.process.send_signal(signal.SIGINT)
        ended = command.end()
        assert b"[upstreams." in ended.out
        assert b"could not be tried: interrupted" in ended.out
