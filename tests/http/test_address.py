"""Addresses: what a URL means, what is refused, and that no secret is told."""

import ssl
from pathlib import Path

import pytest

from tests.table import table
from welldone.http.address import Address, TlsOptions, parse_url, ssl_context

SECRET = "hunter2-hunter2"


@table(
    ("url", "address", "authority"),
    [
        ("http://lab:8000/v1", Address(host="lab", port=8000, prefix="/v1"), "lab:8000"),
        ("http://lab:8000/v1/", Address(host="lab", port=8000, prefix="/v1"), "lab:8000"),
        ("http://lab", Address(host="lab", port=80), "lab"),
        ("http://lab:443", Address(host="lab", port=443), "lab:443"),
        ("HTTP://LAB/a/b", Address(host="lab", port=80, prefix="/a/b"), "lab"),
        ("https://api.openai.com/v1", Address(host="api.openai.com", port=443, prefix="/v1", tls=TlsOptions()), None),
        ("https://a_b.lab.:8443", Address(host="a_b.lab.", port=8443, tls=TlsOptions()), "a_b.lab.:8443"),
        ("http://[::1]:8000/v1", Address(host="::1", port=8000, prefix="/v1"), "[::1]:8000"),
        ("http://[::1]", Address(host="::1", port=80), "[::1]"),
        ("http://127.0.0.1:1", Address(host="127.0.0.1", port=1), "127.0.0.1:1"),
    ],
)
def test_a_url_is_an_address(url: str, address: Address, authority: str | None) -> None:
    assert parse_url(url) == address
    assert parse_url(url).authority == (authority or address.host)


@table(
    ("url", "said"),
    [
        ("lab:8000", "begins with http"),
        ("lab", "begins with http"),
        ("", "begins with http"),
        ("ftp://lab", "begins with http"),
        ("http://", "names no host"),
        ("http:///v1", "names no host"),
        ("http://a..b", "names no host"),
        ("http://a%62c", "names no host"),
        (f"http://{'a' * 64}", "names no host"),
        ("http://lab:0", "from 1 to 65535"),
        ("http://lab:70000", "from 1 to 65535"),
        ("http://lab:x", "from 1 to 65535"),
        ("http://[::1", "no IPv6 address"),
        ("http://[lab]", "no IPv6 address"),
        ("http://[v1.lab]", "no IPv6 address"),
        ("http://[fe80::1%25eth0]", "no zone"),
        (f"http://me:{SECRET}@lab", "give the key with --upstream-key, or as key"),
        (f"http://{SECRET}@lab", "no user"),
        (f"http://lab/v1?key={SECRET}", "no query"),
        ("http://lab/v1?", "no query"),
        ("http://lab/v1#x", "no fragment"),
        ("http://lab/v 1", "no spaces"),
        ("http://lab/v1\r\nX: y", "no spaces"),
        ("http://l\N{LATIN SMALL LETTER A WITH DIAERESIS}b", "plain letters"),
    ],
)
def test_what_is_no_address_is_refused_in_a_sentence_without_secrets(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        parse_url(url)
    assert SECRET not in str(caught.value)


@table("bad", [SECRET + "\r\nX: y", SECRET + "\0", SECRET + "\n", SECRET + "\N{SNOWMAN}"])
def test_a_secret_that_no_header_can_carry_is_refused_and_not_told(bad: str) -> None:
    with pytest.raises(ValueError, match="no header can carry") as caught:
        parse_url("http://lab", key=bad)
    assert SECRET not in str(caught.value)
    with pytest.raises(ValueError, match="no header can carry") as caught:
        parse_url("http://lab", headers=[("Api-Key", bad)])
    assert SECRET not in str(caught.value)


@table(
    ("name", "said"),
    [
        ("a b", "name of a header"),
        ("a:", "name of a header"),
        ("", "name of a header"),
        ("x\r\ny", "name of a header"),
        ("HOST", "not for settings"),
        ("transfer-encoding", "not for settings"),
        ("Expect", "not for settings"),
        ("te", "not for settings"),
    ],
)
def test_a_header_that_would_break_a_request_is_refused(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_url("http://lab", headers=[(name, "1")])


def test_there_is_one_way_to_give_a_key() -> None:
    headers = [("authorization", "Basic abc")]
    assert parse_url("http://lab", headers=headers).headers == (("authorization", "Basic abc"),)
    with pytest.raises(ValueError, match="one of them is too much"):
        parse_url("http://lab", key="k", headers=headers)
    with pytest.raises(ValueError, match="empty"):
        parse_url("http://lab", key="")


def test_an_address_shows_no_secret() -> None:
    address = parse_url("https://lab/v1", key=SECRET, headers=[("Api-Key", SECRET)])
    assert repr(address) == "Address(lab/v1)"
    assert SECRET not in f"{address} {address!r}"


def test_a_file_of_certificates_that_cannot_be_read_is_said_at_once(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    for file in (tmp_path / "none.pem", empty):
        with pytest.raises(ValueError, match="cannot be read"):
            parse_url("https://lab", ca_file=str(file))
    with pytest.raises(ValueError, match="needs a URL with https"):
        parse_url("http://lab", ca_file=str(empty))


def test_tls_checks_what_it_is_shown_unless_told_not_to() -> None:
    strict, lax = ssl_context(TlsOptions()), ssl_context(TlsOptions(is_verified=False))
    assert ssl_context(TlsOptions()) is strict
    assert strict.minimum_version == lax.minimum_version == ssl.TLSVersion.TLSv1_2
    assert (strict.check_hostname, strict.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert (lax.check_hostname, lax.verify_mode) == (False, ssl.CERT_NONE)
