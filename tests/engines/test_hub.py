"""Downloads from the Hugging Face Hub: the real library, in its own process, with a fake Hub."""

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
from welldone.engines.models.install import PullError
from welldone.engines.models.pull import ModelPuller
try:
    print(ModelPuller(Path(sys.argv[2])).pull(sys.argv[1], sys.argv[3] or None))
except PullError as error:
    print(f"{error.kind}: {error}")
"""
WITHOUT_LIBRARY = "import sys; sys.modules['huggingface_hub'] = None\n" + PROGRAM
COMMIT = "0123456789abcdef0123456789abcdef01234567"
DATA = files.model(20_000)
TOKEN = "hf_hunter2"


class FakeHub:
    """A fake Hub, and downloads from it."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self.folder = folder / "models"
        self._home = folder / "home"

    def offer(self, path: str, data: bytes = DATA, sha256: str | None = None, revision: str = "main") -> None:
        """Serve a file like the Hub serves large files."""
        etag = f'"{sha256 or files.sha256(data)}"'
        headers = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": etag, "X-Linked-Size": str(len(data)), "ETag": etag}
        for name in (revision, COMMIT):
            self.site.pages[f"/owner/repo/resolve/{name}/{path}"] = Page(data, headers=headers)

    def fail(self, path: str, status: int, code: str | None) -> None:
        """Answer requests for a file with an error."""
        headers = {} if code is None else {"X-Error-Code": code}
        self.site.pages[f"/owner/repo/resolve/main/{path}"] = Page(status=status, headers=headers)

    def pull(self, source: str, sha256: str = "", program: str = PROGRAM, **environment: str) -> str:
        """Pull a source in a new process; return the path, or the error with its kind."""
        done = subprocess.run(
            [sys.executable, "-c", program, source, str(self.folder), sha256],
            env=os.environ
            | {"HF_ENDPOINT": self.site.url(""), "HF_HOME": str(self._home), "HF_TOKEN": TOKEN, "NO_PROXY": "127.0.0.1"}
            | environment,
            capture_output=True,
            text=True,
            timeout=4 * LIMIT_S,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert TOKEN not in done.stdout
        return done.stdout.strip()

    @property
    def tokens(self) -> set[str | None]:
        """The Authorization headers of the requests for files."""
        return {request.headers.get("authorization") for request in self.site.requests if "/resolve/" in request.path}

    @property
    def file_names(self) -> list[str]:
        """File names in the folder, without locks."""
        return sorted(path.name for path in self.folder.iterdir() if not path.name.endswith(".lock"))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    """A running fake Hub."""
    with web.site() as site:
        yield FakeHub(site, tmp_path)


def test_a_file_is_downloaded_and_checked(hub: FakeHub) -> None:
    hub.offer("sub/a.gguf")
    path = Path(hub.pull("hf:owner/repo/sub/a.gguf"))
    assert path == hub.folder / "a.gguf"
    assert path.read_bytes() == DATA
    assert hub.file_names == ["a.gguf", "a.gguf.json"]
    origin = read_origin(path)
    assert origin is not None
    assert (origin.source, origin.sha256) == ("hf:owner/repo/sub/a.gguf", files.sha256(DATA))
    assert hub.tokens == {f"Bearer {TOKEN}"}


def test_all_files_of_a_split_model_are_downloaded_at_their_revision(hub: FakeHub) -> None:
    names = [f"a-0000{number}-of-00002.gguf" for number in (1, 2)]
    for number, name in enumerate(names):
        hub.offer(name, files.model(100 + number), revision="v1")
    assert hub.pull(f"hf:owner/repo/{names[0]}@v1") == str(hub.folder / names[0])
    assert [name for name in hub.file_names if name.endswith(".gguf")] == names


def test_a_file_with_another_hash_than_the_hubs_is_rejected(hub: FakeHub) -> None:
    hub.offer("a.gguf", sha256="0" * 64)
    output = hub.pull("hf:owner/repo/a.gguf")
    assert output.startswith("wrong: ")
    assert files.sha256(DATA) in output
    assert hub.file_names == []


def test_a_file_with_another_hash_than_expected_is_rejected(hub: FakeHub) -> None:
    hub.offer("a.gguf")
    assert hub.pull("hf:owner/repo/a.gguf", "1" * 64).startswith("wrong: ")
    assert hub.file_names == []


def test_a_file_that_is_not_gguf_is_rejected(hub: FakeHub) -> None:
    hub.offer("a.gguf", b"<html></html>")
    assert "web page" in hub.pull("hf:owner/repo/a.gguf")
    assert hub.file_names == []


@pytest.mark.tier3
@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (404, "EntryNotFound", "has no file a.gguf"),
        (404, "RepoNotFound", "no repository owner/repo"),
        (404, "RevisionNotFound", "no revision"),
        (403, "GatedRepo", "set HF_TOKEN"),
        (401, None, "HF_TOKEN"),
        (404, None, "404"),
    ],
)
def test_errors_of_the_hub_are_explained(status: int, code: str | None, message: str, hub: FakeHub) -> None:
    hub.fail("a.gguf", status, code)
    output = hub.pull("hf:owner/repo/a.gguf")
    assert output.startswith("unreachable: hf:owner/repo/a.gguf")
    assert message in output
    assert hub.file_names == []


def test_an_unreachable_hub_is_reported(hub: FakeHub) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    output = hub.pull("hf:owner/repo/a.gguf", HF_ENDPOINT=f"http://127.0.0.1:{port}")
    assert output.startswith("unreachable: ")
    assert "is unreachable" in output


def test_offline_mode_is_reported(hub: FakeHub) -> None:
    assert "HF_HUB_OFFLINE is set" in hub.pull("hf:owner/repo/a.gguf", HF_HUB_OFFLINE="1")


def test_a_url_of_the_hub_is_downloaded_with_the_library(hub: FakeHub) -> None:
    hub.offer("sub/a%20b.gguf")
    url = hub.site.url("/owner/repo/resolve/main/sub/a%20b.gguf")
    path = Path(hub.pull(f"{url}?download=true"))
    assert (path.name, path.read_bytes()) == ("a-b.gguf", DATA)
    origin = read_origin(path)
    assert origin is not None
    assert origin.source == url
    assert hub.tokens == {f"Bearer {TOKEN}"}


def test_without_the_library_a_url_of_the_hub_is_a_url_like_any_other(hub: FakeHub) -> None:
    hub.offer("a.gguf")
    path = Path(hub.pull(hub.site.url("/owner/repo/resolve/main/a.gguf"), program=WITHOUT_LIBRARY))
    assert path.read_bytes() == DATA
    assert hub.tokens == {None}


def test_without_the_library_the_error_names_the_extra(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIBRARY, "hf:owner/repo/a.gguf", str(tmp_path), ""],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.stdout.startswith("mistake: ")
    assert "pip install 'welldone[hub]'" in done.stdout
