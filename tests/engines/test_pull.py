"""Downloads from a web server: complete, checked and resumable."""

import base64
import gzip
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import files, web
from tests.engines.web import LIMIT_S, Page, Site
from tests.http.certificates import Pair, make_pair
from welldone.engines.models import download
from welldone.engines.models.download import DownloadLimits
from welldone.engines.models.install import BLOCK_BYTES, PullError, PullErrorKind, download_lock, no_progress
from welldone.engines.models.pull import ModelPuller
from welldone.engines.models.store import read_origin
from welldone.http.address import ssl_context

DATA = files.model(20_000)
SHA256 = files.sha256(DATA)
ETAG = {"ETag": '"v1"'}
OTHER = files.model(20_001)


@pytest.fixture
def site() -> Iterator[Site]:
    """A running file server."""
    with web.site() as running:
        yield running


class RecordingPuller:
    """A puller that records progress and pauses."""

    def __init__(self, folder: Path, limits: DownloadLimits | None = None, free_space: list[int] | None = None) -> None:
        self.folder = folder
        self.progress: list[tuple[str, int, int | None]] = []
        self.pauses: list[float] = []
        self._free_space = free_space or [10**12]
        self._puller = ModelPuller(
            folder,
            progress=lambda *update: self.progress.append(update),
            environment={},
            limits=limits or DownloadLimits(stall_timeout_s=LIMIT_S),
            free=lambda _: self._free_space.pop(0) if len(self._free_space) > 1 else self._free_space[0],
            pause=self.pauses.append,
        )

    def pull(self, source: str, sha256: str | None = None) -> Path:
        return self._puller.pull(source, sha256)

    def fail(self, source: str, kind: PullErrorKind, sha256: str | None = None) -> str:
        """Assert that a pull fails; return its error message."""
        with pytest.raises(PullError) as raised:
            self.pull(source, sha256)
        assert raised.value.kind is kind
        return str(raised.value)

    @property
    def file_names(self) -> list[str]:
        """File names in the folder, without locks."""
        return sorted(path.name for path in self.folder.iterdir() if not path.name.endswith(".lock"))


@pytest.fixture
def puller(tmp_path: Path) -> RecordingPuller:
    """A recording puller for an empty folder."""
    return RecordingPuller(tmp_path)


def test_a_file_is_downloaded(site: Site, tmp_path: Path) -> None:
    site.pages["/x/a.gguf"] = Page(DATA)
    puller = RecordingPuller(tmp_path / "new" / "models")
    path = puller.pull(site.url("/x/a.gguf?download=true&sig=hunter2"), SHA256)
    assert path == tmp_path / "new" / "models" / "a.gguf"
    assert path.read_bytes() == DATA
    assert puller.file_names == ["a.gguf", "a.gguf.json"]
    assert puller.progress[0] == ("a.gguf", 0, len(DATA))
    assert puller.progress[-1] == ("a.gguf", len(DATA), len(DATA))
    origin = read_origin(path)
    assert origin is not None
    assert (origin.source, origin.sha256) == (site.url("/x/a.gguf"), SHA256)


def test_pull_needs_only_a_source_and_a_folder(site: Site, tmp_path: Path) -> None:
    site.pages["/a.gguf"] = Page(DATA)
    assert ModelPuller(tmp_path).pull(site.url("/a.gguf")).read_bytes() == DATA


def test_a_file_without_a_content_length_is_downloaded(site: Site, puller: RecordingPuller) -> None:
    site.pages["/a.gguf"] = Page(DATA, has_length=False)
    assert puller.pull(site.url("/a.gguf")).read_bytes() == DATA
    assert puller.progress[-1] == ("a.gguf", len(DATA), None)


def test_an_installed_file_is_not_downloaded_again(site: Site, puller: RecordingPuller) -> None:
    site.pages["/a.gguf"] = Page(DATA)
    for sha256 in (None, None, SHA256):
        puller.pull(site.url("/a.gguf"), sha256)
    assert len(site.requests) == 1


def test_another_file_of_the_same_name_is_not_replaced(site: Site, puller: RecordingPuller) -> None:
    site.pages |= {"/a.gguf": Page(DATA), "/b/a.gguf": Page(OTHER)}
    path = puller.pull(site.url("/a.gguf"))
    message = puller.fail(site.url("/b/a.gguf"), PullErrorKind.USER_ERROR)
    assert f"another file named a.gguf, from {site.url('/a.gguf')}," in message
    puller.fail(site.url("/a.gguf"), PullErrorKind.USER_ERROR, files.sha256(OTHER))
    assert path.read_bytes() == DATA


@pytest.mark.parametrize("headers", [ETAG, {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}, ETAG | {"X": "y"}])
def test_an_interrupted_download_is_resumed(headers: dict[str, str], site: Site, puller: RecordingPuller) -> None:
    site.pages["/a.gguf"] = Page(DATA, headers=headers, cuts=[5000, 7000])
    assert puller.pull(site.url("/a.gguf"), SHA256).read_bytes() == DATA
    assert site.ranges == [None, "bytes=5000-", "bytes=12000-"]
    validator = headers.get("ETag") or headers["Last-Modified"]
    assert [request.headers.get("if-range") for request in site.requests] == [None, validator, validator]
    assert puller.pauses == [1.0, 2.0]


def test_a_later_command_resumes_a_failed_download(site: Site, puller: RecordingPuller) -> None:
    site.pages["/a.gguf"] = Page(DATA, headers=ETAG, cuts=[5000, 0, 0, 0])
    message = puller.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)
    assert "the same command resumes the download" in message
    assert puller.pauses == [1.0, 2.0, 4.0]
    assert puller.file_names == ["a.gguf.part", "a.gguf.part.json"]
    site.requests.clear()
    assert puller.pull(site.url("/a.gguf"), SHA256).read_bytes() == DATA
    assert site.ranges == ["bytes=5000-"]
    assert puller.file_names == ["a.gguf", "a.gguf.json"]


def test_retries_are_not_exhausted_while_there_is_progress(site: Site, puller: RecordingPuller) -> None:
    large = files.model(3 * BLOCK_BYTES)
    site.pages["/a.gguf"] = Page(large, headers=ETAG, cuts=[2 * BLOCK_BYTES] * 5)
    assert puller.pull(site.url("/a.gguf"), files.sha256(large)).stat().st_size == len(large)
    assert puller.pauses == [1.0] * 5


def test_a_complete_part_is_installed_without_a_request(site: Site, puller: RecordingPuller) -> None:
    site.pages["/a.gguf"] = Page(DATA, headers=ETAG, cuts=[len(DATA) - 1, 0, 0, 0])
    puller.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)
    with (puller.folder / "a.gguf.part").open("ab") as file:
        file.write(DATA[-1:])
    site.requests.clear()
    assert puller.pull(site.url("/a.gguf"), SHA256).read_bytes() == DATA
    assert site.requests == []


@pytest.mark.parametrize(
    "page",
    [
        Page(OTHER, headers={"ETag": '"v2"'}),
        Page(OTHER, headers=ETAG, has_ranges=False),
        Page(OTHER, headers=ETAG, range="bytes 17-18/19"),
        Page(OTHER, headers=ETAG, range="nonsense"),
        Page(OTHER, headers=ETAG, statuses=[416]),
        Page(OTHER, headers={"ETag": '"v2"'}, heeds_if_range=False),
        Page(OTHER, headers={}, heeds_if_range=False),
        Page(OTHER, headers=ETAG, range=f"bytes 5000-{len(OTHER)}/{len(OTHER) + 1}", heeds_if_range=False),
    ],
)
def test_a_changed_file_is_downloaded_from_the_start(page: Page, site: Site, puller: RecordingPuller) -> None:
    site.pages["/a.gguf"] = Page(DATA, headers=ETAG, cuts=[5000, 0, 0, 0])
    puller.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)
    site.pages["/a.gguf"] = page
    assert puller.pull(site.url("/a.gguf")).read_bytes() == OTHER


def test_a_range_without_last_modified_is_of_the_requested_version(site: Site, puller: RecordingPuller) -> None:
    dated = {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
    site.pages["/a.gguf"] = Page(DATA, headers=dated, cuts=[5000, 0, 0, 0])
    puller.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)
    site.requests.clear()
    site.pages["/a.gguf"] = Page(DATA, heeds_if_range=False)
    assert puller.pull(site.url("/a.gguf")).read_bytes() == DATA
    assert site.ranges == ["bytes=5000-"]
    later = {"Last-Modified": "Fri, 02 Jan 2026 00:00:00 GMT"}
    site.pages["/b.gguf"] = Page(DATA, headers=dated, cuts=[5000, 0, 0, 0])
    puller.fail(site.url("/b.gguf"), PullErrorKind.UNREACHABLE)
    site.pages["/b.gguf"] = Page(OTHER, headers=later, heeds_if_range=False)
    assert puller.pull(site.url("/b.gguf")).read_bytes() == OTHER


@pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"v1"'}, {"ETag": '"\x01"'}])
def test_without_a_strong_validator_a_download_is_not_resumed(
    headers: dict[str, str], site: Site, puller: RecordingPuller
) -> None:
    site.pages["/a.gguf"] = Page(DATA, headers=headers, cuts=[5000])
    assert puller.pull(site.url("/a.gguf"), SHA256).read_bytes() == DATA
    assert site.ranges == [None, None]


@pytest.mark.parametrize(
    "resume_info", [b"", b"{}", b"[" * 1000, b'{"url_sha256":"0","validator":"\\"v1\\"","total":3}']
)
def test_a_part_of_another_download_is_discarded(resume_info: bytes, site: Site, puller: RecordingPuller) -> None:
    site.pages["/a.gguf"] = Page(DATA, headers=ETAG)
    (puller.folder / "a.gguf.part").write_bytes(b"old")
    (puller.folder / "a.gguf.part.json").write_bytes(resume_info)
    assert puller.pull(site.url("/a.gguf"), SHA256).read_bytes() == DATA
    assert site.ranges == [None]


def test_a_wrong_hash_leaves_no_file(site: Site, puller: RecordingPuller) -> None:
    site.pages["/a.gguf"] = Page(DATA, headers=ETAG)
    message = puller.fail(site.url("/a.gguf"), PullErrorKind.INVALID_FILE, files.sha256(OTHER))
    assert SHA256 in message
    assert puller.file_names == []


def test_a_wrong_hash_of_the_builtin_model_is_reported_before_the_download(puller: RecordingPuller) -> None:
    assert "omit --sha256" in puller.fail("default", PullErrorKind.INVALID_FILE, "0" * 64)


@pytest.mark.parametrize("sha256", ["", "0" * 63, "g" * 64, "0" * 65])
def test_an_invalid_hash_is_a_user_error(sha256: str, puller: RecordingPuller) -> None:
    assert "64 hexadecimal digits" in puller.fail("https://host/a.gguf", PullErrorKind.USER_ERROR, sha256)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "requires authentication (401)"),
        (403, "requires authentication (403)"),
        (404, "was not found (404)"),
        (410, "was not found (410)"),
        (400, "the server answered 400"),
        (304, "the server answered 304"),
    ],
)
def test_a_client_error_is_reported_without_a_retry(
    status: int, message: str, site: Site, puller: RecordingPuller
) -> None:
    site.pages["/a.gguf"] = Page(status=status)
    message = puller.fail(site.url("/a.gguf?sig=hunter2"), PullErrorKind.UNREACHABLE)
    assert message in message
    assert "hunter2" not in message
    assert (len(site.requests), puller.pauses, puller.file_names) == (1, [], [])


def test_a_busy_server_is_retried(site: Site, puller: RecordingPuller) -> None:
    site.pages["/a.gguf"] = Page(DATA, statuses=[503, 429, 500])
    assert puller.pull(site.url("/a.gguf"), SHA256).read_bytes() == DATA
    assert puller.pauses == [1.0, 2.0, 4.0]


def test_retries_of_a_busy_server_are_limited(site: Site, puller: RecordingPuller) -> None:
    site.pages["/a.gguf"] = Page(status=503)
    assert "the server answered 503" in puller.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)
    assert len(site.requests) == 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<!doctype html><html></html>", "it is a web page"),
        (b"\n <html>", "it is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
        (b"PK\x03\x04", "it begins with"),
        (b"", "it begins with"),
    ],
)
def test_a_file_that_is_not_gguf_is_rejected_by_its_first_bytes(
    data: bytes, message: str, site: Site, puller: RecordingPuller
) -> None:
    site.pages["/a.gguf"] = Page(data + bytes(10 * len(data)))
    assert message in puller.fail(site.url("/a.gguf"), PullErrorKind.INVALID_FILE)
    assert puller.file_names == []


def test_a_file_that_does_not_fit_on_the_disk_is_not_started(site: Site, tmp_path: Path) -> None:
    site.pages["/a.gguf"] = Page(DATA)
    # Enough for the file, but not for what stays free.
    puller = RecordingPuller(tmp_path, free_space=[67_000_000])
    message = puller.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)
    assert f"not enough disk space in {tmp_path}: 67.0 MB are free, 67.2 MB are needed (67.1 MB stay free)" in message
    assert puller.file_names == []


@pytest.mark.parametrize(("has_length", "needed"), [(True, r"6(7\.9|8\.0)"), (False, r"67\.1")])
def test_a_disk_that_fills_up_stops_the_download(has_length: bool, needed: str, site: Site, tmp_path: Path) -> None:
    site.pages["/a.gguf"] = Page(DATA + bytes(800_000), headers=ETAG, has_length=has_length)
    puller = RecordingPuller(
        tmp_path, limits=DownloadLimits(stall_timeout_s=LIMIT_S, space_check_bytes=1000), free_space=[10**12, 1000]
    )
    message = puller.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)
    assert re.search(f"0.0 MB are free, {needed} MB are needed", message)
    assert "a.gguf" not in puller.file_names


def test_a_folder_that_is_not_writable_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert "set WELLDONE_HOME" in RecordingPuller(tmp_path / "file" / "models").fail(
        "default", PullErrorKind.UNREACHABLE
    )


def test_redirects_are_followed_without_credentials(site: Site, puller: RecordingPuller) -> None:
    with web.site() as other:
        other.pages["/store/1"] = Page(DATA, headers=ETAG, cuts=[5000])
        site.pages["/a.gguf"] = Page(status=302, headers={"Location": "/b"})
        site.pages["/b"] = Page(status=307, headers={"Location": other.url("/store/1?sig=hunter2")})
        path = puller.pull(site.url("/a.gguf"), SHA256)
        assert (path.name, path.read_bytes()) == ("a.gguf", DATA)
        assert other.ranges == [None, "bytes=5000-"]
        allowed = {"accept-encoding", "user-agent", "host", "connection", "range", "if-range"}
        assert [set(request.headers) - allowed for request in other.requests] == [set(), set()]


def test_redirects_are_limited(site: Site, puller: RecordingPuller) -> None:
    site.pages["/a.gguf"] = Page(status=302, headers={"Location": "/a.gguf"})
    assert "redirected too often" in puller.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)
    assert len(site.requests) == 6


def test_a_redirect_to_unencrypted_http_is_rejected(site: Site, puller: RecordingPuller) -> None:
    site.pages["/a.gguf"] = Page(status=302, headers={"Location": "http://example.com/a.gguf"})
    assert "not encrypted" in puller.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)


def test_a_stalled_download_times_out(site: Site, tmp_path: Path) -> None:
    site.pages["/a.gguf"] = Page(DATA, released=threading.Event())
    puller = RecordingPuller(tmp_path, limits=DownloadLimits(stall_timeout_s=0.5, retries=0))
    assert "no data for 0.5 s" in puller.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)


def test_a_refused_connection_is_reported_without_a_retry(puller: RecordingPuller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    message = puller.fail(f"http://127.0.0.1:{port}/a.gguf", PullErrorKind.UNREACHABLE)
    assert "connection refused" in message
    assert puller.pauses == []


class Proxy:
    """A proxy that answers a tunnel's requests itself, with a certificate for `models.test`."""

    def __init__(self, pair: Pair, status: int = 200) -> None:
        self._tls = pair.serving()
        self._status = status
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.heads: list[bytes] = []

    def run(self) -> None:
        """Answer one request."""
        connection, _ = self._listening.accept()
        with self._listening, connection:
            self.heads.append(connection.recv(65536))
            connection.sendall(b"HTTP/1.1 %d Reason\r\nX: y\r\n\r\n" % self._status)
            if self._status == 200:
                with self._tls.wrap_socket(connection, server_side=True) as encrypted:
                    self.heads.append(encrypted.recv(65536))
                    encrypted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(DATA) + DATA)


@pytest.mark.tier2
@pytest.mark.parametrize("status", [200, 407])
def test_the_proxy_of_the_environment_is_used(
    status: int, puller: RecordingPuller, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make_pair(tmp_path_factory.mktemp("tls"), names="DNS:models.test")
    proxy = Proxy(pair, status)
    for name in ("HTTPS_PROXY", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", f"http://user:hunter%32@127.0.0.1:{proxy.port}")
    monkeypatch.setenv("SSL_CERT_FILE", str(pair.certificate))
    monkeypatch.setattr(download, "ssl_context", ssl_context.__wrapped__)  # without its cache
    thread = threading.Thread(target=proxy.run)
    thread.start()
    if status == 200:
        assert puller.pull("https://models.test/a.gguf?x=y", SHA256).read_bytes() == DATA
        assert proxy.heads[1].startswith(b"GET /a.gguf?x=y HTTP/1.1\r\n")
        assert b"\r\nHost: models.test\r\n" in proxy.heads[1]
        assert b"roxy" not in proxy.heads[1]
    else:
        message = puller.fail("https://models.test/a.gguf", PullErrorKind.UNREACHABLE)
        assert "through the proxy: tunnel connection failed: 407" in message
    thread.join(LIMIT_S)
    credentials = base64.b64encode(b"user:hunter2")
    assert proxy.heads[0].startswith(b"CONNECT models.test:443 HTTP/1.")
    assert b"\r\nproxy-authorization: basic " + credentials.lower() + b"\r\n" in proxy.heads[0].lower()


@pytest.mark.parametrize("proxy", ["http://", "http://host:port", "http://127.0.0.1:1"])
def test_a_wrong_proxy_is_reported(proxy: str, puller: RecordingPuller, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", proxy)
    is_url = proxy.endswith("1")
    kind = PullErrorKind.UNREACHABLE if is_url else PullErrorKind.USER_ERROR
    message = puller.fail("https://models.test/a.gguf", kind)
    assert ("connection refused" if is_url else "HTTPS_PROXY is not the URL of a proxy") in message


def test_a_host_without_a_proxy_is_connected_directly(
    puller: RecordingPuller, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "models.invalid")
    site.pages["/a.gguf"] = Page(DATA)
    assert puller.pull(site.url("/a.gguf")).read_bytes() == DATA
    assert "proxy" not in puller.fail("https://models.invalid/b.gguf", PullErrorKind.UNREACHABLE)


def test_a_compressed_reply_is_not_a_model(site: Site, puller: RecordingPuller) -> None:
    site.pages["/a.gguf"] = Page(gzip.compress(DATA), headers={"Content-Encoding": "gzip"})
    assert "it begins with" in puller.fail(site.url("/a.gguf"), PullErrorKind.INVALID_FILE)


@pytest.mark.parametrize("reply", [b"SSH-2.0-OpenSSH\r\n", b""])
def test_a_reply_that_is_not_http_is_reported(reply: bytes, puller: RecordingPuller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        source = f"http://127.0.0.1:{listening.getsockname()[1]}/a.gguf"
        message = puller.fail(source, PullErrorKind.UNREACHABLE)
        thread.join(LIMIT_S)
    assert ("the reply is not HTTP" if reply else "closed connection") in message


def test_all_files_of_a_split_model_are_downloaded(site: Site, puller: RecordingPuller) -> None:
    names = [f"a-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for number, name in enumerate(names):
        site.pages[f"/x/{name}"] = Page(files.model(100 + number))
    assert puller.pull(site.url(f"/x/{names[1]}?download=true")).name == names[0]
    assert [name for name in puller.file_names if name.endswith(".gguf")] == names
    assert [request.path for request in site.requests] == [f"/x/{name}?download=true" for name in names]
    puller.fail(site.url(f"/x/{names[0]}"), PullErrorKind.USER_ERROR, SHA256)


@pytest.mark.parametrize("name", ["a-00004-of-00003.gguf", "a-00000-of-00003.gguf", "a-00001-of-99999.gguf"])
def test_an_invalid_part_of_a_split_model_is_a_user_error(name: str, puller: RecordingPuller) -> None:
    assert "not a valid part of a split model" in puller.fail(f"https://host/{name}", PullErrorKind.USER_ERROR)


def test_concurrent_pulls_of_the_same_file_download_it_once(site: Site, tmp_path: Path) -> None:
    released = threading.Event()
    site.pages["/a.gguf"] = Page(DATA, released=released)

    def report(name: str, _done: int, _total: int | None) -> None:
        if "waiting for another process" in name:
            released.set()

    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(ModelPuller(tmp_path, progress=report).pull(site.url("/a.gguf"))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert [path.read_bytes() for path in paths] == [DATA, DATA]
    assert len(site.requests) == 1


def test_waiting_for_the_download_lock_times_out(tmp_path: Path) -> None:
    pauses: list[float] = []
    target = tmp_path / "a.gguf"
    with (
        download_lock(target, no_progress),
        pytest.raises(PullError, match="for more than 1 s"),
        download_lock(target, no_progress, limit_s=1.0, pause=pauses.append),
    ):
        pass
    assert len(pauses) == 5
