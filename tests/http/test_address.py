"""Addresses: parsing and validation of URLs, without secrets in error messages."""

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
def test_a_url_is_parsed_into_an_address(url: str, address: Address, authority: str | None) -> None:
    assert parse_url(url) == address
    assert parse_url(url).authority == (authority or address.host)


@table(
    ("url", "message"),
    [
        ("lab:8000", "must start with http"),
        ("lab", "must start with http"),
        ("", "must start with http"),
        ("ftp://lab", "must start with http"),
        ("http://", "no valid host name"),
        ("http:///v1", "no valid host name"),
        ("http://a..b", "no valid host name"),
        ("http://a%62c", "no valid host name"),
        (f"http://{'a' * 64}", "no valid host name"),
        ("http://lab:0", "from 1 to 65535"),
        ("http://lab:70000", "from 1 to 65535"),
        ("http://lab:x", "from 1 to 65535"),
        ("http://[::1", "do not contain an IPv6 address"),
        ("http://[lab]", "do not contain an IPv6 address"),
        ("http://[v1.lab]", "do not contain an IPv6 address"),
        ("http://[fe80::1%25eth0]", "must not have a zone"),
        (f"http://me:{SECRET}@lab", "give the key as an option of its own, or as key"),
        (f"http://{SECRET}@lab", "must not contain a user"),
        (f"http://lab/v1?key={SECRET}", "must not have a query"),
        ("http://lab/v1?", "must not have a query"),
        ("http://lab/v1#x", "or a fragment"),
        ("http://lab/v 1", "contains a space"),
        ("http://lab/v1\r\nX: y", "contains a space"),
        ("http://l\N{LATIN SMALL LETTER A WITH DIAERESIS}b", "outside ASCII"),
    ],
)
def test_invalid_urls_are_rejected_without_secrets_in_the_message(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_url(url)
    assert SECRET not in str(caught.value)


@table("bad", [SECRET + "\r\nX: y", SECRET + "\0", SECRET + "\n", SECRET + "\N{SNOWMAN}"])
def test_a_secret_with_control_characters_is_rejected_and_not_disclosed(bad: str) -> None:
    with pytest.raises(ValueError, match="not allowed in a header") as caught:
        parse_url("http://lab", key=bad)
    assert SECRET not in str(caught.value)
    with pytest.raises(ValueError, match="not allowed in a header") as caught:
        parse_url("http://lab", headers=[("Api-Key", bad)])
    assert SECRET not in str(caught.value)


@table(
    ("name", "message"),
    [
        ("a b", "header name consists of"),
        ("a:", "header name consists of"),
        ("", "header name consists of"),
        ("x\r\ny", "header name consists of"),
        ("HOST", "cannot be configured"),
        ("transfer-encoding", "cannot be configured"),
        ("Expect", "cannot be configured"),
        ("te", "cannot be configured"),
    ],
)
def test_invalid_and_reserved_headers_are_rejected(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_url("http://lab", headers=[(name, "1")])


def test_a_key_and_an_authorization_header_exclude_each_other() -> None:
    headers = [("authorization", "Basic abc")]
    assert parse_url("http://lab", headers=headers).headers == (("authorization", "Basic abc"),)
    with pytest.raises(ValueError, match="remove one of them"):
        parse_url("http://lab", key="k", headers=headers)
    with pytest.raises(ValueError, match="empty"):
        parse_url("http://lab", key="")


def test_the_repr_of_an_address_contains_no_secret() -> None:
    address = parse_url("https://lab/v1", key=SECRET, headers=[("Api-Key", SECRET)])
    assert repr(address) == "Address(lab/v1)"
    assert SECRET not in f"{address} {address!r}"


def test_an_unreadable_ca_file_is_rejected_at_once(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    for file in (tmp_path / "none.pem", empty):
        with pytest.raises(ValueError, match="cannot be read"):
            parse_url("https://lab", ca_file=str(file))
    with pytest.raises(ValueError, match="needs a URL that starts with https"):
        parse_url("http://lab", ca_file=str(empty))


def test_tls_verifies_certificates_unless_disabled() -> None:
    verified, unverified = ssl_context(TlsOptions()), ssl_context(TlsOptions(is_verified=False))
    assert ssl_context(TlsOptions()) is verified
    assert verified.minimum_version == unverified.minimum_version == ssl.TLSVersion.TLSv1_2
    assert (verified.check_hostname, verified.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert (unverified.check_hostname, unverified.verify_mode) == (False, ssl.CERT_NONE)
