"""docs/vllm.md: its configurations are valid, its numbers are the stored ones, and its links exist."""

import re
from pathlib import Path

from tests.table import table
from tools import server_page
from tools.server_page import Checked
from welldone.gateway.routing import route_problems
from welldone.server.config import read_config

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "vllm.md").read_text("utf-8")
BLOCKS = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)


@table("block", BLOCKS, ids=lambda block: block.partition("\n")[0])
def test_each_configuration_is_valid(block: str, tmp_path: Path) -> None:
    (tmp_path / "welldone.toml").write_text(block)
    config = read_config({}, {"VLLM_KEY": "sk-a-key-of-the-test"}, folder=tmp_path)
    assert config.models or config.upstreams
    assert not config.warnings
    assert not route_problems(config.routes, config.upstreams, [model.name for model in config.models])
    for model in config.models:
        assert model.command[:2] == ("vllm", "serve")
        assert model.command[model.command.index("--uds") + 1] == "{socket}"


def test_the_page_has_seven_configurations() -> None:
    assert len(BLOCKS) == 7


def test_the_numbers_of_broken_rules_are_the_stored_ones() -> None:
    page = server_page.load_page(ROOT / "docs" / "servers" / "vllm.json")
    stored = []
    for endpoint in ("chat", "responses", "messages"):
        result = page.results[endpoint]
        assert isinstance(result, Checked)
        stored += [len(result.broken), sum(broken.severity == "breaks" for broken in result.broken)]
    pattern = (
        r"(\d+) rules broken in chat, (\d+)\s+of them .*?; (\d+) \((\d+)\) in Responses, (\d+) \((\d+)\) in Messages"
    )
    found = re.search(pattern, TEXT, re.DOTALL)
    assert found is not None
    assert [int(number) for number in found.groups()] == stored


def test_every_linked_file_exists() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
