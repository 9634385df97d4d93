"""A fake Hugging Face Hub, for the real library in a process of its own."""

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
JSON_TYPE = {"Content-Type": "application/json"}


class FakeHub:
    """A fake Hub, and downloads from it."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self.folder = folder / "models"
        self._home = folder / "home"

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

    def pull(self, source: str, sha256: str = "", program: str = PROGRAM, **environment: str) -> str:
        """Pull a source in a new process; return the path, or the error with its kind."""
        done = subprocess.run(
            [sys.executable, "-c", program, source, str(self.folder), sha256],
            env=os.environ | self.environment | environment,
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


@contextmanager
def fake_hub(folder: Path) -> Iterator[FakeHub]:
    """Run a fake Hub; its models folder is within `folder`."""
    with web.site() as site:
        yield FakeHub(site, folder)
