"""Files from a web server: whole, checked, and resumed where they broke off."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import files, web
from tests.engines.web import LIMIT_S, Page, Site
from welldone.engines.models.download import DownloadLimits
from welldone.engines.models.install import BLOCK_BYTES, PullError, PullErrorKind, download_lock, no_progress
from welldone.engines.models.pull import ModelPuller, pull
from welldone.engines.models.store import read_origin

DATA = files.model(20_000)
SHA256 = files.sha256(DATA)
ETAG = {"ETag": '"v1"'}
OTHER = files.model(20_001)


@pytest.fixture
def site() -> Iterator[Site]:
    """A server."""
    with web.site() as made:
        yield made


class Tried:
    """A puller for a folder, and what it did meanwhile."""

    def __init__(self, folder: Path, limits: DownloadLimits | None = None, room: list[int] | None = None) -> None:
        self.folder = folder
        self.told: list[tuple[str, int, int | None]] = []
        self.pauses: list[float] = []
        self._room = room or [10**12]
        self._puller = ModelPuller(
            folder,
            progress=lambda *told: self.told.append(told),
            environment={},
            limits=limits or DownloadLimits(stall_timeout_s=LIMIT_S),
            free=lambda _: self._room.pop(0) if len(self._room) > 1 else self._room[0],
            pause=self.pauses.append,
        )

    def pull(self, source: str, sha256: str | None = None) -> Path:
        return self._puller.pull(source, sha256)

    def fail(self, source: str, trouble: PullErrorKind, sha256: str | None = None) -> str:
        """Pull what cannot be had; what is said about it."""
        with pytest.raises(PullError) as raised:
            self.pull(source, sha256)
        assert raised.value.kind is trouble
        return str(raised.value)

    @property
    def left(self) -> list[str]:
        """What is in the folder, without locks."""
        return sorted(path.name for path in self.folder.iterdir() if not path.name.endswith(".lock"))


@pytest.fixture
def tried(tmp_path: Path) -> Tried:
    """A puller for an empty folder."""
    return Tried(tmp_path)


def test_a_file_is_fetched_whole(site: Site, tmp_path: Path) -> None:
    site.pages["/x/a.gguf"] = Page(DATA)
    tried = Tried(tmp_path / "new" / "models")
    path = tried.pull(site.url("/x/a.gguf?download=true&sig=hunter2"), SHA256)
    assert path == tmp_path / "new" / "models" / "a.gguf"
    assert path.read_bytes() == DATA
    assert tried.left == ["a.gguf", "a.gguf.json"]
    assert tried.told[0] == ("a.gguf", 0, len(DATA))
    assert tried.told[-1] == ("a.gguf", len(DATA), len(DATA))
    origin = read_origin(path)
    assert origin is not None
    assert (origin.source, origin.sha256) == (site.url("/x/a.gguf"), SHA256)


def test_pull_takes_a_folder_and_no_more(site: Site, tmp_path: Path) -> None:
    site.pages["/a.gguf"] = Page(DATA)
    assert pull(site.url("/a.gguf"), folder=tmp_path, progress=no_progress).read_bytes() == DATA


def test_a_file_without_a_length_is_fetched_whole(site: Site, tried: Tried) -> None:
    site.pages["/a.gguf"] = Page(DATA, has_length=False)
    assert tried.pull(site.url("/a.gguf")).read_bytes() == DATA
    assert tried.told[-1] == ("a.gguf", len(DATA), None)


def test_a_file_that_is_there_is_not_fetched_again(site: Site, tried: Tried) -> None:
    site.pages["/a.gguf"] = Page(DATA)
    for sha256 in (None, None, SHA256):
        tried.pull(site.url("/a.gguf"), sha256)
    assert len(site.asked) == 1


def test_another_file_of_the_same_name_is_left_alone(site: Site, tried: Tried) -> None:
    site.pages |= {"/a.gguf": Page(DATA), "/b/a.gguf": Page(OTHER)}
    path = tried.pull(site.url("/a.gguf"))
    said = tried.fail(site.url("/b/a.gguf"), PullErrorKind.USER_ERROR)
    assert f"another a.gguf already, from {site.url('/a.gguf')}" in said
    tried.fail(site.url("/a.gguf"), PullErrorKind.USER_ERROR, files.sha256(OTHER))
    assert path.read_bytes() == DATA


@pytest.mark.parametrize("headers", [ETAG, {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}, ETAG | {"X": "y"}])
def test_a_broken_connection_is_taken_up_where_it_broke(headers: dict[str, str], site: Site, tried: Tried) -> None:
    site.pages["/a.gguf"] = Page(DATA, headers=headers, cuts=[5000, 7000])
    assert tried.pull(site.url("/a.gguf"), SHA256).read_bytes() == DATA
    assert site.ranges == [None, "bytes=5000-", "bytes=12000-"]
    validator = headers.get("ETag") or headers["Last-Modified"]
    assert [asked.headers.get("if-range") for asked in site.asked] == [None, validator, validator]
    assert tried.pauses == [1.0, 2.0]


def test_a_later_command_goes_on_where_the_first_gave_up(site: Site, tried: Tried) -> None:
    site.pages["/a.gguf"] = Page(DATA, headers=ETAG, cuts=[5000, 0, 0, 0])
    said = tried.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)
    assert "the same command goes on from there" in said
    assert tried.pauses == [1.0, 2.0, 4.0]
    assert tried.left == ["a.gguf.part", "a.gguf.part.json"]
    site.asked.clear()
    assert tried.pull(site.url("/a.gguf"), SHA256).read_bytes() == DATA
    assert site.ranges == ["bytes=5000-"]
    assert tried.left == ["a.gguf", "a.gguf.json"]


def test_a_connection_that_gets_on_may_break_often(site: Site, tried: Tried) -> None:
    large = files.model(3 * BLOCK_BYTES)
    site.pages["/a.gguf"] = Page(large, headers=ETAG, cuts=[2 * BLOCK_BYTES] * 5)
    assert tried.pull(site.url("/a.gguf"), files.sha256(large)).stat().st_size == len(large)
    assert tried.pauses == [1.0] * 5


def test_what_was_whole_but_not_yet_named_is_not_fetched_again(site: Site, tried: Tried) -> None:
    site.pages["/a.gguf"] = Page(DATA, headers=ETAG, cuts=[len(DATA) - 1, 0, 0, 0])
    tried.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)
    with (tried.folder / "a.gguf.part").open("ab") as file:
        file.write(DATA[-1:])
    site.asked.clear()
    assert tried.pull(site.url("/a.gguf"), SHA256).read_bytes() == DATA
    assert site.asked == []


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
def test_a_file_that_changed_meanwhile_is_fetched_from_its_start(page: Page, site: Site, tried: Tried) -> None:
    site.pages["/a.gguf"] = Page(DATA, headers=ETAG, cuts=[5000, 0, 0, 0])
    tried.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)
    site.pages["/a.gguf"] = page
    assert tried.pull(site.url("/a.gguf")).read_bytes() == OTHER


def test_a_part_without_a_date_is_of_the_version_that_was_asked_for(site: Site, tried: Tried) -> None:
    dated = {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
    site.pages["/a.gguf"] = Page(DATA, headers=dated, cuts=[5000, 0, 0, 0])
    tried.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)
    site.asked.clear()
    site.pages["/a.gguf"] = Page(DATA, heeds_if_range=False)
    assert tried.pull(site.url("/a.gguf")).read_bytes() == DATA
    assert site.ranges == ["bytes=5000-"]
    later = {"Last-Modified": "Fri, 02 Jan 2026 00:00:00 GMT"}
    site.pages["/b.gguf"] = Page(DATA, headers=dated, cuts=[5000, 0, 0, 0])
    tried.fail(site.url("/b.gguf"), PullErrorKind.UNREACHABLE)
    site.pages["/b.gguf"] = Page(OTHER, headers=later, heeds_if_range=False)
    assert tried.pull(site.url("/b.gguf")).read_bytes() == OTHER


@pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"v1"'}])
def test_without_a_strong_mark_a_file_is_fetched_from_its_start(
    headers: dict[str, str], site: Site, tried: Tried
) -> None:
    site.pages["/a.gguf"] = Page(DATA, headers=headers, cuts=[5000])
    assert tried.pull(site.url("/a.gguf"), SHA256).read_bytes() == DATA
    assert site.ranges == [None, None]


@pytest.mark.parametrize("mark", [b"", b"{}", b"[" * 1000, b'{"url_sha256":"0","validator":"\\"v1\\"","total":3}'])
def test_a_part_of_something_else_is_thrown_away(mark: bytes, site: Site, tried: Tried) -> None:
    site.pages["/a.gguf"] = Page(DATA, headers=ETAG)
    (tried.folder / "a.gguf.part").write_bytes(b"old")
    (tried.folder / "a.gguf.part.json").write_bytes(mark)
    assert tried.pull(site.url("/a.gguf"), SHA256).read_bytes() == DATA
    assert site.ranges == [None]


def test_a_wrong_hash_leaves_nothing(site: Site, tried: Tried) -> None:
    site.pages["/a.gguf"] = Page(DATA, headers=ETAG)
    said = tried.fail(site.url("/a.gguf"), PullErrorKind.INVALID_FILE, files.sha256(OTHER))
    assert SHA256 in said
    assert tried.left == []


def test_another_hash_than_that_of_the_builtin_model_is_said_before_anything_comes(tried: Tried) -> None:
    assert "leave --sha256 out" in tried.fail("default", PullErrorKind.INVALID_FILE, "0" * 64)


@pytest.mark.parametrize("sha256", ["", "0" * 63, "g" * 64, "0" * 65])
def test_a_hash_that_is_none_is_a_mistake(sha256: str, tried: Tried) -> None:
    assert "64 hexadecimal digits" in tried.fail("https://host/a.gguf", PullErrorKind.USER_ERROR, sha256)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "is not for everybody (401)"),
        (403, "is not for everybody (403)"),
        (404, "is not there (404)"),
        (410, "is not there (410)"),
        (400, "the server answered 400"),
        (304, "the server answered 304"),
    ],
)
def test_a_refusal_is_told_at_once(status: int, words: str, site: Site, tried: Tried) -> None:
    site.pages["/a.gguf"] = Page(status=status)
    said = tried.fail(site.url("/a.gguf?sig=hunter2"), PullErrorKind.UNREACHABLE)
    assert words in said
    assert "hunter2" not in said
    assert (len(site.asked), tried.pauses, tried.left) == (1, [], [])


def test_a_server_that_is_busy_is_asked_again(site: Site, tried: Tried) -> None:
    site.pages["/a.gguf"] = Page(DATA, statuses=[503, 429, 500])
    assert tried.pull(site.url("/a.gguf"), SHA256).read_bytes() == DATA
    assert tried.pauses == [1.0, 2.0, 4.0]


def test_a_server_that_stays_busy_is_given_up(site: Site, tried: Tried) -> None:
    site.pages["/a.gguf"] = Page(status=503)
    assert "the server answered 503" in tried.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)
    assert len(site.asked) == 4


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"<!doctype html><html></html>", "it is a web page"),
        (b"\n <html>", "it is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "pointer of Git LFS"),
        (b"PK\x03\x04", "it begins with"),
        (b"", "it begins with"),
    ],
)
def test_what_is_no_gguf_is_refused_by_its_first_bytes(data: bytes, words: str, site: Site, tried: Tried) -> None:
    site.pages["/a.gguf"] = Page(data + bytes(10 * len(data)))
    assert words in tried.fail(site.url("/a.gguf"), PullErrorKind.INVALID_FILE)
    assert tried.left == []


def test_what_does_not_fit_on_the_disk_is_not_begun(site: Site, tmp_path: Path) -> None:
    site.pages["/a.gguf"] = Page(DATA)
    tried = Tried(tmp_path, room=[1000])
    assert "not enough room" in tried.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)
    assert tried.left == []


def test_a_disk_that_fills_up_meanwhile_stops_it(site: Site, tmp_path: Path) -> None:
    site.pages["/a.gguf"] = Page(DATA, headers=ETAG, has_length=False)
    tried = Tried(tmp_path, limits=DownloadLimits(stall_timeout_s=LIMIT_S, space_check_bytes=1000), room=[10**12, 1000])
    assert "not enough room" in tried.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)
    assert "a.gguf" not in tried.left


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert "set WELLDONE_HOME" in Tried(tmp_path / "file" / "models").fail("default", PullErrorKind.UNREACHABLE)


def test_redirects_are_followed_without_credentials(site: Site, tried: Tried) -> None:
    with web.site() as other:
        other.pages["/store/1"] = Page(DATA, headers=ETAG, cuts=[5000])
        site.pages["/a.gguf"] = Page(status=302, headers={"Location": "/b"})
        site.pages["/b"] = Page(status=307, headers={"Location": other.url("/store/1?sig=hunter2")})
        path = tried.pull(site.url("/a.gguf"), SHA256)
        assert (path.name, path.read_bytes()) == ("a.gguf", DATA)
        assert other.ranges == [None, "bytes=5000-"]
        allowed = {"accept-encoding", "user-agent", "host", "connection", "range", "if-range"}
        assert [set(asked.headers) - allowed for asked in other.asked] == [set(), set()]


def test_redirects_without_end_are_given_up(site: Site, tried: Tried) -> None:
    site.pages["/a.gguf"] = Page(status=302, headers={"Location": "/a.gguf"})
    assert "redirected too often" in tried.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)
    assert len(site.asked) == 6


def test_a_redirect_to_an_open_connection_elsewhere_is_refused(site: Site, tried: Tried) -> None:
    site.pages["/a.gguf"] = Page(status=302, headers={"Location": "http://example.com/a.gguf"})
    assert "not encrypted" in tried.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)


def test_a_server_that_falls_silent_is_given_up(site: Site, tmp_path: Path) -> None:
    site.pages["/a.gguf"] = Page(DATA, gate=threading.Event())
    tried = Tried(tmp_path, limits=DownloadLimits(stall_timeout_s=0.5, retries=0))
    assert "nothing came for 0.5 s" in tried.fail(site.url("/a.gguf"), PullErrorKind.UNREACHABLE)


def test_where_nobody_listens_is_told_at_once(tried: Tried) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    said = tried.fail(f"http://127.0.0.1:{port}/a.gguf", PullErrorKind.UNREACHABLE)
    assert "connection refused" in said
    assert tried.pauses == []


def test_all_files_of_a_split_model_are_fetched(site: Site, tried: Tried) -> None:
    names = [f"a-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for number, name in enumerate(names):
        site.pages[f"/x/{name}"] = Page(files.model(100 + number))
    assert tried.pull(site.url(f"/x/{names[1]}?download=true")).name == names[0]
    assert [name for name in tried.left if name.endswith(".gguf")] == names
    assert [asked.path for asked in site.asked] == [f"/x/{name}?download=true" for name in names]
    tried.fail(site.url(f"/x/{names[0]}"), PullErrorKind.USER_ERROR, SHA256)


@pytest.mark.parametrize("name", ["a-00004-of-00003.gguf", "a-00000-of-00003.gguf", "a-00001-of-99999.gguf"])
def test_a_part_that_cannot_be_one_is_a_mistake(name: str, tried: Tried) -> None:
    assert "no part of a split model" in tried.fail(f"https://host/{name}", PullErrorKind.USER_ERROR)


def test_two_who_want_the_same_file_fetch_it_once(site: Site, tmp_path: Path) -> None:
    gate = threading.Event()
    site.pages["/a.gguf"] = Page(DATA, gate=gate)

    def tell(name: str, _done: int, _total: int | None) -> None:
        if "waiting for another process" in name:
            gate.set()

    paths: list[Path] = []
    both = [
        threading.Thread(target=lambda: paths.append(ModelPuller(tmp_path, progress=tell).pull(site.url("/a.gguf"))))
        for _ in range(2)
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(LIMIT_S)
    assert [path.read_bytes() for path in paths] == [DATA, DATA]
    assert len(site.asked) == 1


def test_who_waits_too_long_for_another_gives_up(tmp_path: Path) -> None:
    pauses: list[float] = []
    target = tmp_path / "a.gguf"
    with (
        download_lock(target, no_progress),
        pytest.raises(PullError, match="for too long"),
        download_lock(target, no_progress, limit_s=1.0, pause=pauses.append),
    ):
        pass
    assert len(pauses) == 5
