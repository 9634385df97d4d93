"""Capabilities parsed from the replies of an engine."""

from typing import Any

from tests.table import table
from welldone.config.model import ModelSettings
from welldone.engines.capabilities import parse_capabilities
from welldone.engines.models.gguf import GgufMetadata

COMMAND = ModelSettings(name="m", command=("run", "{port}"), parallel=7)
METADATA = GgufMetadata(size_bytes=1, version=3, architecture="llama")


def test_a_server_without_props_is_assumed_to_support_everything() -> None:
    found = parse_capabilities({}, {}, COMMAND, None)
    assert (found.kind, found.context, found.slots) == ("command", 0, 7)
    assert all((found.chat, found.tools, found.images, found.embeddings))


def test_the_context_length_is_read_from_vllms_model_list() -> None:
    found = parse_capabilities({}, {"data": [{"id": "m", "max_model_len": 4096}]}, COMMAND, None)
    assert (found.context, found.train_context) == (4096, 4096)


def test_capabilities_are_read_from_llama_cpps_props() -> None:
    props = {
        "default_generation_settings": {"n_ctx": 2048},
        "total_slots": 2,
        "modalities": {"vision": True, "audio": False},
        "chat_template_caps": {"supports_tools": False},
    }
    meta = {"n_ctx_train": 8192, "n_vocab": 100, "n_embd": 32, "n_params": 1000, "size": 2000}
    found = parse_capabilities(props, {"data": [{"meta": meta}]}, ModelSettings(name="m"), METADATA)
    assert (found.kind, found.context, found.train_context, found.slots) == ("llama", 2048, 8192, 2)
    assert (found.vocabulary_size, found.embedding_size, found.parameters, found.size_bytes) == (100, 32, 1000, 2000)
    assert (found.images, found.audio, found.tools, found.chat, found.embeddings) == (True, False, False, True, False)


@table(
    ("setting", "name", "is_converted"),
    [
        ("auto", "Qwen2.5 Coder 1.5B Instruct", True),
        ("auto", "qwen2.5-coder-7b-instruct-q4_k_m", True),
        ("auto", "Qwen2.5 7B Instruct", False),
        ("auto", "Qwen3 Coder 30B A3B Instruct", False),
        ("auto", None, False),
        ("on", None, True),
        ("off", "Qwen2.5-Coder-1.5B-Instruct", False),
    ],
)
def test_calls_in_json_text_are_converted_by_setting_and_model(
    setting: str, name: str | None, is_converted: bool
) -> None:
    settings = ModelSettings(name="m", json_tool_calls=setting)
    metadata = GgufMetadata(size_bytes=1, version=3, architecture="qwen2", name=name)
    assert parse_capabilities({}, {}, settings, metadata).json_tool_calls is is_converted


def test_a_command_converts_calls_only_if_it_is_set() -> None:
    for setting, is_converted in (("auto", False), ("on", True)):
        settings = ModelSettings(name="m", command=("run",), json_tool_calls=setting)
        assert parse_capabilities({}, {}, settings, None).json_tool_calls is is_converted


ODD: list[Any] = [None, 1, "x", [], [1], {"data": 1}, {"data": []}, {"data": [1]}, {"data": [{"meta": [1], "x": None}]}]


@table("odd", ODD)
def test_unexpected_replies_are_ignored(odd: Any) -> None:  # noqa: ANN401 - any JSON
    props = {"default_generation_settings": odd, "total_slots": odd, "modalities": odd, "chat_template_caps": odd}
    found = parse_capabilities(props, odd if isinstance(odd, dict) else {"data": odd}, COMMAND, None)
    assert found.context == 0
