"""Speculative decoding: the draft model, its vocabulary, the flags of llama-server, and llama.cpp's own refusals."""

from pathlib import Path
from typing import Any

import pytest

from tests.engines import files, stand_in_server
from tests.engines.supervisors import fetch_json, run, running_supervisor
from tests.models.gguf_writer import Array, Kind
from welldone.config.model import ModelSettings
from welldone.engines.engine_config import EngineConfig
from welldone.engines.errors import EngineError
from welldone.engines.llama_server import probe_server, server_arguments
from welldone.engines.plan import make_plan
from welldone.engines.speculation import VOCABULARY_SIZE_DIFFERENCE, speculation_warning, with_speculation

TOKENS = [f"token{number}" for number in range(300)]


def written(path: Path, tokens: list[str] | None) -> Path:
    """Write a model with these tokens."""
    path.write_bytes(files.model(**({} if tokens is None else {"tokenizer__ggml__tokens": Array(Kind.STRING, tokens)})))
    return path


def checked(folder: Path, tokens: list[str] | None = TOKENS, **changes: Any) -> ModelSettings:  # noqa: ANN401 - settings
    """Check a model with a draft model of these tokens."""
    file, draft = written(folder / "main.gguf", TOKENS), written(folder / "draft.gguf", tokens)
    settings = ModelSettings(name="m", file=file, **{"draft_model": draft, **changes})
    return with_speculation(settings, file, folder)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((), ("draft-simple",)),
        (("none",), ("draft-simple",)),
        (("ngram-mod", "draft-simple"), ("ngram-mod", "draft-simple")),
    ],
)
def test_a_draft_model_is_used_unless_the_type_says_otherwise(
    tmp_path: Path, given: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert checked(tmp_path, spec_type=given).spec_type == expected


def test_a_draft_model_is_found_by_its_name(tmp_path: Path) -> None:
    assert checked(tmp_path, draft_model=Path("draft")).draft_model == tmp_path / "draft.gguf"


@pytest.mark.parametrize(
    "tokens",
    [TOKENS, [*"abcde", *TOKENS[5:]], [*TOKENS, *map(str, range(VOCABULARY_SIZE_DIFFERENCE))], None],
    ids=["the same", "other special tokens", "some more", "unknown"],
)
def test_a_draft_model_may_have_a_similar_vocabulary(tmp_path: Path, tokens: list[str] | None) -> None:
    assert checked(tmp_path, tokens).spec_type == ("draft-simple",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tokens": [*TOKENS[:7], "x" * 99, *TOKENS[8:]]},
            r"has another vocabulary: token 7 is 'x{20}' instead of 'token7'",
        ),
        ({"tokens": TOKENS[:100]}, "has another vocabulary: 100 tokens instead of 300"),
        ({"draft_model": Path("/somewhere/gone.gguf")}, "there is no draft model gone.gguf"),
        ({"draft_model": None, "spec_type": ("draft-simple",)}, "spec_type draft-simple needs a draft model"),
        ({"spec_type": ("ngram-simple",)}, "spec_type ngram-simple does not use the draft model"),
    ],
)
def test_an_unsuitable_draft_model_is_a_permanent_error(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        checked(tmp_path, **changes)
    assert caught.value.is_permanent
    assert "\n" not in caught.value.message
    assert "/" not in caught.value.message


def test_a_draft_model_that_is_no_gguf_file_is_a_permanent_error(tmp_path: Path) -> None:
    (tmp_path / "other.gguf").write_bytes(b"PK\x03\x04")
    with pytest.raises(EngineError, match=r"its draft model other\.gguf is not a GGUF file"):
        checked(tmp_path, draft_model=tmp_path / "other.gguf")


def test_other_kinds_of_drafts_have_their_own_vocabulary(tmp_path: Path) -> None:
    assert checked(tmp_path, TOKENS[:10], spec_type=("draft-eagle3",)).spec_type == ("draft-eagle3",)


def test_the_wheel_gets_the_draft_model(tiny_model: Path) -> None:
    settings = ModelSettings(name="m", file=tiny_model, draft_model=tiny_model, engine=Path("wheel"))
    plan = make_plan(settings, models_folder=Path("no"), socket_folder=Path("/s"), environment={})
    own = EngineConfig.decode(plan.config_line).settings
    assert (own.draft_model, own.spec_type) == (tiny_model, ("draft-simple",))


def test_settings_become_flags_of_llama_server(tmp_path: Path) -> None:
    new = probe_server(stand_in_server.install(tmp_path / "new"))
    old = probe_server(stand_in_server.install(tmp_path / "old", without=("--spec-type", "--spec-draft-n-max")))
    settings = checked(tmp_path, draft_max=8, draft_min=2, draft_p_min=0.5, draft_gpu_layers=0)

    def words(program: Any, own: ModelSettings = settings) -> str:  # noqa: ANN401 - ServerProgram
        return " ".join(server_arguments(own, program, (), Path("/k"), None))

    assert f"--spec-draft-model {tmp_path / 'draft.gguf'} --spec-type draft-simple --spec-draft-n-max 8 " in words(new)
    assert "--spec-draft-n-min 2 --spec-draft-p-min 0.5 --spec-draft-ngl 0" in words(new)
    assert "--draft-max 8" in words(old)
    assert "--spec-type" not in words(old)
    with pytest.raises(EngineError, match="does not know --spec-type"):
        words(old, checked(tmp_path, draft_model=None, spec_type=("ngram-mod",)))


def test_the_server_without_speculation_gets_no_flag_for_it(tmp_path: Path) -> None:
    program = probe_server(stand_in_server.install(tmp_path / "llama-server"))
    settings = checked(tmp_path, draft_model=None)
    assert not [word for word in server_arguments(settings, program, (), Path("/k"), None) if word.startswith("--spec")]


def test_a_draft_that_llama_cpp_refuses_is_a_warning() -> None:
    assert speculation_warning("0.01 I srv load_model: all is well") is None
    line = "E srv load_model: failed to initialize speculative decoding context: draft model vocab type must match"
    assert speculation_warning(line) == (
        "the engine serves this model without speculative decoding: draft model vocab type must match"
    )
    other = "W srv load_model: speculative decoding not supported by this context"
    assert "its context does not allow it" in str(speculation_warning(other))


@pytest.mark.parametrize("kind", ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"])
def test_each_kind_of_n_grams_answers(tiny_model: Path, kind: str) -> None:
    warnings: list[str] = []

    async def main() -> None:
        settings = ModelSettings(name="m", file=tiny_model, ctx_size=512, threads=1, spec_type=(kind,))
        async with running_supervisor(settings, on_warning=lambda _, text: warnings.append(text)) as supervisor:
            address = await supervisor.models[0].ensure_ready()
            body = {"prompt": "a b c d " * 16, "n_predict": 24, "temperature": 0, "ignore_eos": True}
            reply = await fetch_json(address, "/completion", body)
            assert reply["timings"]["predicted_n"] == 24
            assert supervisor.models[0].capabilities is not None
            assert not supervisor.models[0].capabilities.logprobs

    run(main())
    assert not warnings
