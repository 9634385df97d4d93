"""Failures for lack of file descriptors or memory are temporary, others permanent."""

import asyncio
import errno
from pathlib import Path

import pytest

from tests.engines.supervisors import READY, command, run
from welldone.engines.errors import EngineError
from welldone.engines.models.gguf import GgufError, read_metadata
from welldone.engines.plan import make_plan
from welldone.engines.process import EngineProcess

CODES = pytest.mark.parametrize(
    ("code", "is_permanent"),
    [(errno.EMFILE, False), (errno.ENFILE, False), (errno.ENOMEM, False), (errno.EACCES, True)],
)


@CODES
def test_a_file_that_cannot_be_opened_for_lack_of_resources_is_a_temporary_error(
    code: int, is_permanent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, "no")

    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(GgufError) as caught:
        read_metadata(file)
    assert caught.value.is_permanent == is_permanent


@CODES
def test_a_program_that_cannot_be_started_for_lack_of_resources_is_a_temporary_error(
    code: int, is_permanent: bool, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise OSError(code, "no")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
    plan = make_plan(command(*READY), models_folder=short_path, socket_folder=short_path, environment={})
    with pytest.raises(EngineError) as caught:
        run(EngineProcess.start(plan, timeout_s=1.0))
    assert caught.value.is_permanent == is_permanent
