"""Model sources, safe file names and redirects."""

import io
from http.client import HTTPMessage
from urllib.request import Request

import pytest

from tests.table import table
from welldone.engines.models.download import SafeRedirects
from welldone.engines.models.install import HubSource, PullError, PullErrorKind, WebSource, parse_source, safe_file_name


@table(
    ("text", "source"),
    [
        ("hf:own-er/rep.o/a.gguf", HubSource("own-er/rep.o", "a.gguf", None)),
        ("hf:owner/repo/sub/dir/a.gguf@v1.0", HubSource("owner/repo", "sub/dir/a.gguf", "v1.0")),
        ("hf:owner/repo/a b.gguf@refs/pr/3", HubSource("owner/repo", "a b.gguf", "refs/pr/3")),
        ("https://host/x/a.gguf?download=true", WebSource("https://host/x/a.gguf?download=true")),
        ("https://host:8443/a%20b.gguf", WebSource("https://host:8443/a%20b.gguf")),
        ("http://127.0.0.1:80/a.gguf", WebSource("http://127.0.0.1:80/a.gguf")),
        ("http://localhost/a.gguf", WebSource("http://localhost/a.gguf")),
        ("http://[::1]/a.gguf", WebSource("http://[::1]/a.gguf")),
    ],
)
def test_sources_are_parsed(text: str, source: WebSource | HubSource) -> None:
    assert parse_source(text) == source


@table(
    ("path", "endpoint", "source"),
    [
        ("/owner/re.po/resolve/main/a.gguf", None, HubSource("owner/re.po", "a.gguf", "main")),
        ("/o/r/resolve/refs%2Fpr%2F3/b/a%20b.gguf?download=true", None, HubSource("o/r", "b/a b.gguf", "refs/pr/3")),
        ("/o/r/resolve/main/a.gguf", "https://huggingface.co/", HubSource("o/r", "a.gguf", "main")),
        ("/o/r/resolve/main/a.gguf", "https://mirror", None),
        ("/o/r/resolve/main/a.gguf?sig=x", None, None),
        ("/o/r/resolve/main/%2e%2e/a.gguf", None, None),
        ("/datasets/o/r/resolve/main/a.gguf", None, None),
        ("/datasets/r/resolve/main/a.gguf", None, None),
        ("/o/r/blob/main/a.gguf", None, None),
        (".example.com/o/r/resolve/main/a.gguf", None, None),
    ],
)
def test_urls_of_the_hub_are_recognised(path: str, endpoint: str | None, source: HubSource | None) -> None:
    assert WebSource(f"https://huggingface.co{path}").on_hub(endpoint) == source


@table(
    ("text", "message"),
    [
        ("", "use default, hf:"),
        ("defaullt", "use default, hf:"),
        ("owner/repo/a.gguf", "did you mean 'hf:owner/repo/a.gguf'"),
        ("./a.gguf", "welldone serve -m ./a.gguf"),
        ("hf:owner/a.gguf", "is not a model source"),
        ("hf:owner/repo/a.safetensors", "does not end in .gguf"),
        ("hf:owner/repo/../../a.gguf", "leaves its repository"),
        ("hf:owner/repo/a.gguf@b c", "is not a model source"),
        ("http://example.com/a.gguf", "not encrypted"),
        ("http://127.0.0.1.example.com/a.gguf", "not encrypted"),
        ("https:///a.gguf", "not the URL of a file"),
        ("https://host:port/a.gguf", "is not a URL"),
        ("https://[::1/a.gguf", "is not a URL"),
        ("https://host/a.html", "does not end in .gguf"),
        ("https://host/", "does not end in .gguf"),
        ("https://host/a b.gguf", "percent-encoded"),
        ("https://host/ä.gguf", "percent-encoded"),
        ("https://host/a.gguf\r\nHost: b", "percent-encoded"),
        ("https://user:hunter2@host/a.gguf", "remove it"),
        ("ftp://host/a.gguf", "is not a model source"),
        ("file:///etc/passwd", "is not a model source"),
    ],
)
def test_an_invalid_source_is_a_user_error(text: str, message: str) -> None:
    with pytest.raises(PullError, match=message) as raised:
        parse_source(text)
    assert raised.value.kind is PullErrorKind.USER_ERROR
    assert "hunter2" not in str(raised.value)
    assert "\n" not in str(raised.value)


@table(
    ("text", "name"),
    [
        ("a.gguf", "a.gguf"),
        ("Model-7B.Q4_K_M.gguf", "Model-7B.Q4_K_M.gguf"),
        ("x/../../a.gguf", "a.gguf"),
        ("x\\..\\a.gguf", "a.gguf"),
        ("..a.gguf", "a.gguf"),
        ("-rf.gguf", "rf.gguf"),
        ("a b\0c\n.gguf", "a-b-c-.gguf"),
        ("ä.GGUF", "gguf"),
        ("m ä.GGUF", "m-.gguf"),
        ("a" * 300 + ".gguf", "a" * 200 + ".gguf"),
    ],
)
def test_file_names_are_reduced_to_safe_characters(text: str, name: str) -> None:
    if name == "gguf":
        with pytest.raises(PullError):
            safe_file_name(text)
    else:
        assert safe_file_name(text) == name


def test_a_source_expands_to_all_files_of_a_split_model() -> None:
    web = WebSource("https://host/x/a-00002-of-00002.gguf?t=1")
    assert [file.url for file in web.files()] == [f"https://host/x/a-0000{n}-of-00002.gguf?t=1" for n in (1, 2)]
    hub = HubSource("o/r", "q/a-00001-of-00002.gguf", "main")
    assert [str(file) for file in hub.files()] == [f"hf:o/r/q/a-0000{n}-of-00002.gguf@main" for n in (1, 2)]


def _redirect(url: str, location: str) -> Request | None:
    return SafeRedirects().redirect_request(Request(url), io.BytesIO(), 302, "Found", HTTPMessage(), location)


@table(
    ("url", "target"),
    [
        ("https://a/x.gguf", "https://b/y?sig=1"),
        ("http://127.0.0.1:1/x.gguf", "http://127.0.0.1:2/y"),
        ("http://127.0.0.1:1/x.gguf", "https://b/y"),
    ],
)
def test_a_safe_redirect_is_followed(url: str, target: str) -> None:
    redirected = _redirect(url, target)
    assert redirected is not None
    assert redirected.full_url == target


@table(
    ("url", "location"),
    [
        ("https://a/x.gguf", "http://127.0.0.1/y"),
        ("https://a/x.gguf", "http://b/y"),
        ("https://a/x.gguf", "file:///etc/passwd"),
        ("https://a/x.gguf", "https://user:hunter2@b/y"),
        ("http://127.0.0.1:1/x.gguf", "http://example.com/y"),
    ],
)
def test_an_unsafe_redirect_is_rejected(url: str, location: str) -> None:
    with pytest.raises(PullError) as raised:
        _redirect(url, location)
    assert raised.value.kind is PullErrorKind.UNREACHABLE
    assert "hunter2" not in str(raised.value)
