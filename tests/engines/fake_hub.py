"""A fake Hugging Face Hub, for the real library in a process of its own: it reads its settings when it is imported."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.engines import files, web
from tests.engines.web import LIMIT_S, Page, Site

PROGRAM = """
import json, sys
from pathlib import Path
from welldone.engines.models.install import PullError
from welldone.engines.models.pull import ModelPuller
for line in sys.stdin:
    source, folder, sha256 = json.loads(line)
    try:
        print(ModelPuller(Path(folder)).pull(source, sha256 or None), flush=True)
    except PullError as error:
        print(f"{error.kind}: {error}", flush=True)
"""
WITHOUT_LIBRARY = "import sys; sys.modules['huggingface_hub'] = None\n" + PROGRAM
COMMIT = "0123456789abcdef0123456789abcdef01234567"
DATA = files.model(20_000)
TOKEN = "hf_hunter2"
JSON_TYPE = {"Content-Type": "application/json"}


class FakeHub:
    """A fake Hub, and downloads from it."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self.folder = folder / "models"
        self._home = folder / "home"
        self._puller: subprocess.Popen[str] | None = None

    def reset(self, folder: Path) -> None:
        """Forget all files and requests; pull into another folder."""
        self.site.pages.clear()
        self.site.requests.clear()
        self.folder = folder / "models"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make the library use this Hub."""
        return {
            "HF_ENDPOINT": self.site.url(""),
            "HF_HOME": str(self._home),
            "HF_TOKEN": TOKEN,
            "NO_PROXY": "127.0.0.1",
            "WELLDONE_HOME": str(self.folder.parent),
        }

    def offer(self, path: str, data: bytes = DATA, sha256: str | None = None, revision: str = "main") -> None:
        """Serve a file like the Hub serves large files."""
        etag = f'"{sha256 or files.sha256(data)}"'
        headers = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": etag, "X-Linked-Size": str(len(data)), "ETag": etag}
        for name in (revision, COMMIT):
            self.site.pages[f"/owner/repo/resolve/{name}/{path}"] = Page(data, headers=headers)

    def offer_repository(self, contents: Mapping[str, bytes]) -> None:
        """List the files of the repository, and serve them."""
        listed = [{"rfilename": path, "size": len(data), "blobId": "0" * 40} for path, data in contents.items()]
        info = {"id": "owner/repo", "modelId": "owner/repo", "sha": COMMIT, "siblings": listed}
        self.site.pages["/api/models/owner/repo"] = Page(json.dumps(info).encode(), headers=JSON_TYPE)
        for path, data in contents.items():
            self.offer(path, data)

    def offer_search(self, *repositories: str) -> None:
        """Answer every search with these repositories; the first one is gated."""
        common = {"downloads": 12, "likes": 3, "private": False, "tags": ["gguf"]}
        found = [
            {**common, "id": name, "gated": "manual" if name == repositories[0] else False} for name in repositories
        ]
        self.site.pages["/api/models"] = Page(json.dumps(found).encode(), headers=JSON_TYPE)

    def fail_list(self, status: int, code: str | None) -> None:
        """Answer requests for the list of files with an error."""
        headers = {} if code is None else {"X-Error-Code": code}
        self.site.pages["/api/models/owner/repo"] = Page(status=status, headers=headers)

    def fail(self, path: str, status: int, code: str | None) -> None:
        """Answer requests for a file with an error."""
        headers = {} if code is None else {"X-Error-Code": code}
        self.site.pages[f"/owner/repo/resolve/main/{path}"] = Page(status=status, headers=headers)

    def pull(self, source: str, sha256: str = "") -> str:
        """Pull a source; return the path, or the error with its kind."""
        if self._puller is None:
            self._puller = self._start(PROGRAM, {})
        assert self._puller.stdin is not None
        assert self._puller.stdout is not None
        self._puller.stdin.write(self._line(source, sha256))
        self._puller.stdin.flush()
        return _without_token(self._puller.stdout.readline())

    def pull_alone(self, source: str, program: str = PROGRAM, **environment: str) -> str:
        """Pull a source in a process of its own, with other settings."""
        with self._start(program, environment) as puller:
            out, err = puller.communicate(self._line(source, ""), timeout=4 * LIMIT_S)
        assert (puller.returncode, err) == (0, "")
        return _without_token(out)

    def end(self) -> None:
        """End the process that pulls."""
        if self._puller is not None:
            with self._puller:
                _, err = self._puller.communicate(timeout=LIMIT_S)
            assert (self._puller.returncode, err) == (0, "")

    def _start(self, program: str, environment: Mapping[str, str]) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, **self.environment, **environment},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )

    def _line(self, source: str, sha256: str) -> str:
        return json.dumps([source, str(self.folder), sha256]) + "\n"

    @property
    def tokens(self) -> set[str | None]:
        """The Authorization headers of the requests for files."""
        return {request.headers.get("authorization") for request in self.site.requests if "/resolve/" in request.path}

    @property
    def file_names(self) -> list[str]:
        """File names in the folder, without locks."""
        return sorted(path.name for path in self.folder.iterdir() if not path.name.endswith(".lock"))


def _without_token(output: str) -> str:
    assert output
    assert TOKEN not in output
    return output.strip()


@contextmanager
def fake_hub(folder: Path) -> Iterator[FakeHub]:
    """Run a fake Hub; its models folder is within `folder`."""
    with web.site() as site:
        hub = FakeHub(site, folder)
        try:
            yield hub
        finally:
            hub.end()
