"""Downloads from the Hugging Face Hub: the real library, in its own process, with a fake Hub."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import files
from tests.engines.fake_hub import DATA, TOKEN, WITHOUT_LIBRARY, FakeHub, fake_hub
from welldone.config.settings import install_advice
from welldone.engines.models.store import read_origin

pytest.importorskip("huggingface_hub")


@pytest.fixture(scope="module")
def running_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    """A running fake Hub, and one process that pulls from it."""
    with fake_hub(tmp_path_factory.mktemp("hub")) as running:
        yield running


@pytest.fixture
def hub(running_hub: FakeHub, tmp_path: Path) -> FakeHub:
    """An empty Hub and an empty folder."""
    running_hub.reset(tmp_path)
    return running_hub


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
    output = hub.pull_alone("hf:owner/repo/a.gguf", HF_ENDPOINT=f"http://127.0.0.1:{port}")
    assert output.startswith("unreachable: ")
    assert "is unreachable" in output


def test_offline_mode_is_reported(hub: FakeHub) -> None:
    assert "HF_HUB_OFFLINE is set" in hub.pull_alone("hf:owner/repo/a.gguf", HF_HUB_OFFLINE="1")


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
    path = Path(hub.pull_alone(hub.site.url("/owner/repo/resolve/main/a.gguf"), WITHOUT_LIBRARY))
    assert path.read_bytes() == DATA
    assert hub.tokens == {None}


def test_without_the_library_the_error_names_the_extra(hub: FakeHub) -> None:
    output = hub.pull_alone("hf:owner/repo/a.gguf", WITHOUT_LIBRARY)
    assert output.startswith("mistake: ")
    assert install_advice("hub") in output


SMALL, LARGE = files.model(100), files.model(300)
QUANTISATIONS = {
    "README.md": b"# A model",
    "repo-IQ2_XS.gguf": files.model(90),
    "repo-Q4_K_M.gguf": SMALL,
    "repo-q8_0.gguf": LARGE,
    "mmproj-F16.gguf": SMALL,
    "BF16/repo-00001-of-00002.gguf": files.model(500),
    "BF16/repo-00002-of-00002.gguf": files.model(501),
    "F32/repo-00001-of-00002.gguf": LARGE,
}


def test_a_quantisation_is_downloaded_by_its_name(hub: FakeHub) -> None:
    hub.offer_repository(QUANTISATIONS)
    path = Path(hub.pull("hf:owner/repo:q4_k_m"))
    assert (path.name, path.read_bytes()) == ("repo-Q4_K_M.gguf", SMALL)
    origin = read_origin(path)
    assert origin is not None
    assert origin.source == "hf:owner/repo/repo-Q4_K_M.gguf"
    assert "another file named repo-Q4_K_M.gguf" in hub.pull("hf:owner/repo:Q4_K_M", "1" * 64)
    hub.site.pages.clear()
    assert hub.pull("hf:owner/repo:Q4_K_M") == str(path)  # without the Hub


def test_all_files_of_a_split_quantisation_are_downloaded(hub: FakeHub) -> None:
    hub.offer_repository(QUANTISATIONS)
    names = [path.rpartition("/")[2] for path in QUANTISATIONS if path.startswith("BF16")]
    assert hub.pull("hf:owner/repo:BF16") == str(hub.folder / names[0])
    assert [name for name in hub.file_names if name.endswith(".gguf")] == names


def test_without_a_quantisation_the_error_lists_them_with_a_command(hub: FakeHub) -> None:
    hub.offer_repository(QUANTISATIONS)
    output = hub.pull("hf:owner/repo")
    assert output.startswith("mistake: hf:owner/repo has 4 quantisations: IQ2_XS (0.0 MB), Q4_K_M (0.0 MB), Q8_0")
    assert output.endswith("choose one: welldone pull hf:owner/repo:Q4_K_M")


def test_the_only_model_of_a_repository_needs_no_quantisation(hub: FakeHub) -> None:
    hub.offer_repository({"a.gguf": DATA, "config.json": b"{}"})
    assert hub.pull("hf:owner/repo") == str(hub.folder / "a.gguf")


def test_an_unknown_quantisation_is_an_error_with_the_known_ones(hub: FakeHub) -> None:
    hub.offer_repository(QUANTISATIONS)
    output = hub.pull("hf:owner/repo:Q4_K_N")
    assert output.startswith(
        "mistake: hf:owner/repo has no quantisation Q4_K_N (did you mean 'Q4_K_M'?); it has IQ2_XS"
    )


def test_a_repository_without_gguf_files_is_an_error(hub: FakeHub) -> None:
    hub.offer_repository({"model.safetensors": b"x"})
    assert "hf:owner/repo has no GGUF model" in hub.pull("hf:owner/repo:Q4_K_M")


@pytest.mark.tier2
@pytest.mark.parametrize(
    ("status", "code", "token", "message"),
    [
        (
            401,
            "RepoNotFound",
            "",
            "no repository owner/repo, or it is private: set HF_TOKEN to an access token",
        ),
        (403, "GatedRepo", "", "is gated: request access on the page of owner/repo; set HF_TOKEN"),
        (403, "GatedRepo", TOKEN, "the access token in use has no access"),
        (404, "RevisionNotFound", TOKEN, "no revision 'v9'"),
        (500, None, TOKEN, "the Hub answered 500"),
    ],
)
def test_a_list_of_files_that_fails_is_explained(
    status: int, code: str | None, token: str, message: str, hub: FakeHub
) -> None:
    hub.fail_list(status, code)
    hub.site.pages["/api/models/owner/repo/revision/v9"] = hub.site.pages["/api/models/owner/repo"]
    output = hub.pull_alone("hf:owner/repo:Q4_K_M" + ("@v9" if code == "RevisionNotFound" else ""), HF_TOKEN=token)
    assert output.startswith("unreachable: hf:owner/repo:Q4_K_M")
    assert message in output


def test_an_interrupted_download_is_resumed(hub: FakeHub) -> None:
    data = DATA + bytes(12 * 2**20)  # the library keeps pieces of 10 MiB
    hub.offer_repository({"a-Q4_K_M.gguf": data})
    for path, page in hub.site.pages.items():
        if "/resolve/" in path:
            page.cuts = [11 * 2**20]
    assert Path(hub.pull("hf:owner/repo:Q4_K_M")).read_bytes() == data
    assert f"bytes={10 * 2**20}-" in hub.site.ranges
