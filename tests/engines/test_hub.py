"""Models from the hub: its real library, in a process of its own, against a stand-in for the hub."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import files, web
from tests.engines.web import LIMIT_S, Page, Site
from welldone.engines.models.store import read_origin

pytest.importorskip("huggingface_hub")

PROGRAM = """
import sys
from pathlib import Path
from welldone.engines.pull import PullError, pull
try:
    print(pull(sys.argv[1], folder=Path(sys.argv[2]), sha256=sys.argv[3] or None))
except PullError as error:
    print(f"{error.trouble}: {error}")
"""
COMMIT = "0123456789abcdef0123456789abcdef01234567"
DATA = files.model(20_000)
TOKEN = "hf_hunter2"


class Hub:
    """The stand-in, and what is fetched from it."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self.folder = folder / "models"
        self._home = folder / "home"

    def offer(self, path: str, data: bytes = DATA, sha256: str | None = None, revision: str = "main") -> None:
        """Have a file, as the hub has large ones."""
        etag = f'"{sha256 or files.sha256(data)}"'
        said = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": etag, "X-Linked-Size": str(len(data)), "ETag": etag}
        for name in (revision, COMMIT):
            self.site.pages[f"/owner/repo/resolve/{name}/{path}"] = Page(data, headers=said)

    def refuse(self, path: str, status: int, code: str | None) -> None:
        """Not have a file."""
        said = {} if code is None else {"X-Error-Code": code}
        self.site.pages[f"/owner/repo/resolve/main/{path}"] = Page(status=status, headers=said)

    def pull(self, source: str, sha256: str = "", **more: str) -> str:
        """What is said in the end."""
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, source, str(self.folder), sha256],
            env=os.environ
            | {"HF_ENDPOINT": self.site.url(""), "HF_HOME": str(self._home), "HF_TOKEN": TOKEN, "NO_PROXY": "127.0.0.1"}
            | more,
            capture_output=True,
            text=True,
            timeout=4 * LIMIT_S,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert TOKEN not in done.stdout
        return done.stdout.strip()

    @property
    def left(self) -> list[str]:
        """What is in the folder, without locks."""
        return sorted(path.name for path in self.folder.iterdir() if not path.name.endswith(".lock"))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A stand-in for the hub."""
    with web.site() as site:
        yield Hub(site, tmp_path)


def test_a_file_of_the_hub_is_fetched_and_checked(hub: Hub) -> None:
    hub.offer("sub/a.gguf")
    path = Path(hub.pull("hf:owner/repo/sub/a.gguf"))
    assert path == hub.folder / "a.gguf"
    assert path.read_bytes() == DATA
    assert hub.left == ["a.gguf", "a.gguf.json"]
    origin = read_origin(path)
    assert origin is not None
    assert (origin.source, origin.sha256) == ("hf:owner/repo/sub/a.gguf", files.sha256(DATA))
    tokens = {asked.headers.get("authorization") for asked in hub.site.asked if "/resolve/" in asked.path}
    assert tokens == {f"Bearer {TOKEN}"}


def test_all_files_of_a_split_model_are_fetched_at_their_revision(hub: Hub) -> None:
    names = [f"a-0000{number}-of-00002.gguf" for number in (1, 2)]
    for number, name in enumerate(names):
        hub.offer(name, files.model(100 + number), revision="v1")
    assert hub.pull(f"hf:owner/repo/{names[0]}@v1") == str(hub.folder / names[0])
    assert [name for name in hub.left if name.endswith(".gguf")] == names


def test_a_file_that_differs_from_what_the_hub_says_is_refused(hub: Hub) -> None:
    hub.offer("a.gguf", sha256="0" * 64)
    said = hub.pull("hf:owner/repo/a.gguf")
    assert said.startswith("wrong: ")
    assert files.sha256(DATA) in said
    assert hub.left == []


def test_a_file_that_differs_from_what_the_user_says_is_refused(hub: Hub) -> None:
    hub.offer("a.gguf")
    assert hub.pull("hf:owner/repo/a.gguf", "1" * 64).startswith("wrong: ")
    assert hub.left == []


def test_a_file_that_is_no_gguf_is_refused(hub: Hub) -> None:
    hub.offer("a.gguf", b"<html></html>")
    assert "web page" in hub.pull("hf:owner/repo/a.gguf")
    assert hub.left == []


@pytest.mark.tier3
@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (404, "EntryNotFound", "has no file a.gguf"),
        (404, "RepoNotFound", "no repository owner/repo"),
        (404, "RevisionNotFound", "no revision"),
        (403, "GatedRepo", "set HF_TOKEN"),
        (401, None, "HF_TOKEN"),
        (404, None, "404"),
    ],
)
def test_a_refusal_of_the_hub_is_explained(status: int, code: str | None, words: str, hub: Hub) -> None:
    hub.refuse("a.gguf", status, code)
    said = hub.pull("hf:owner/repo/a.gguf")
    assert said.startswith("unreachable: hf:owner/repo/a.gguf")
    assert words in said
    assert hub.left == []


def test_a_hub_that_is_not_there_is_told(hub: Hub) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    said = hub.pull("hf:owner/repo/a.gguf", HF_ENDPOINT=f"http://127.0.0.1:{port}")
    assert said.startswith("unreachable: ")
    assert "was not reached" in said


def test_the_librarys_offline_switch_is_named(hub: Hub) -> None:
    assert "HF_HUB_OFFLINE is set" in hub.pull("hf:owner/repo/a.gguf", HF_HUB_OFFLINE="1")


def test_without_the_library_the_error_names_the_extra(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['huggingface_hub'] = None\n" + PROGRAM
    done = subprocess.run(
        [sys.executable, "-c", hidden, "hf:owner/repo/a.gguf", str(tmp_path), ""],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.stdout.startswith("mistake: ")
    assert "pip install 'welldone[hub]'" in done.stdout
