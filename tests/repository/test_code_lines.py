"""The code lines of each package stay within the figures of pyproject.toml."""

import shutil
from pathlib import Path

import pytest

from tools import code_lines

SAMPLE = '''"""Docstring
of two lines."""

X = (  # a comment beside code
    1,
)
"""What X is."""


def f() -> int:
    """Return one."""
    # A comment.
    return X[0]
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with 100 code lines in one package, and one beside it."""
    (tmp_path / "src/welldone/core").mkdir(parents=True)
    (tmp_path / "src/welldone/core/a.py").write_text("x = 1\n" * 100)
    (tmp_path / "src/welldone/top.py").write_text("x = 1\n")
    text = "[project]\nname = 'a'\n\n[tool.welldone.code-lines]\nold = 3\n\n[tool.other]\nx = 1\n"
    (tmp_path / "pyproject.toml").write_text(text)
    return tmp_path


def test_docstrings_comments_and_blank_lines_are_no_code() -> None:
    assert code_lines.count_lines(SAMPLE) == 5
    assert code_lines.count_lines("# comment\n\ncdef int x = 1\n", is_python=False) == 1


def test_a_package_that_grows_by_more_than_two_percent_fails(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_lines.main(["--update"], root) == 0
    assert code_lines.main([], root) == 0
    file = root / "src/welldone/core/a.py"
    for lines, status in ((102, 0), (103, 1)):
        file.write_text("x = 1\n" * lines)
        assert code_lines.main([], root) == status
    out, err = capsys.readouterr()
    assert out.splitlines() == ["core: 103, recorded 100", "all: 104, recorded 101"]
    assert "make code-lines" in err
    shutil.copy(file, file.with_name("b.py"))
    assert code_lines.main([], root) == 1
    assert "files: 3, recorded 2" in capsys.readouterr().out


def test_only_the_figures_are_written(root: Path) -> None:
    code_lines.main(["--update"], root)
    assert (root / "pyproject.toml").read_text() == (
        "[project]\nname = 'a'\n\n[tool.welldone.code-lines]\ncore = 100\nmodules = 1\nall = 101\nfiles = 2\n\n"
        "[tool.other]\nx = 1\n"
    )


def test_the_package_is_within_its_figures() -> None:
    assert code_lines.main([]) == 0
