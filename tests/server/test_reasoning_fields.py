"""The field that carries reasoning, by client."""

from tests.table import table
from welldone.server.generation.pipelines import reasoning_fields_for


@table(
    ("setting", "names"),
    [
        ("reasoning_content", ("reasoning_content",)),
        ("reasoning", ("reasoning",)),
        ("both", ("reasoning_content", "reasoning")),
    ],
)
@table("client", [None, "codex_cli_rs/0.40.0", "Zed/0.200"])
def test_the_setting_overrides_the_known_clients(client: str | None, setting: str, names: tuple[str, ...]) -> None:
    assert reasoning_fields_for(client, setting) == names


@table(
    ("client", "name"),
    [
        (None, "reasoning_content"),
        ("", "reasoning_content"),
        ("OpenAI/Python 3.49.0", "reasoning_content"),
        ("codex_cli_rs/0.40.0 (Debian 12; x86_64) tmux", "reasoning"),
        ("pydantic-ai/1.2.0", "reasoning"),
        ("Zed/0.200.1 (linux; x86_64)", "reasoning_content"),
        ("ai/5.0.0 ai-sdk/openai-compatible/1.0.0 runtime/node.js/22", "reasoning_content"),
    ],
)
def test_a_client_gets_the_field_that_it_reads(client: str | None, name: str) -> None:
    assert reasoning_fields_for(client, "auto") == (name,)
