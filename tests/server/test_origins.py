"""Host and Origin checks: local clients are accepted, pages of other sites rejected."""

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from tests.table import table
from welldone.gateway.errors import ApiError
from welldone.server.access.origins import HostPort, OriginPolicy, is_loopback, parse_host

METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "BREW"]


def _origins(
    host: str = "127.0.0.1",
    *,
    allowed: Iterable[str] = (),
    cors: Iterable[str] = (),
    is_tls: bool = False,
    has_keys: bool = False,
) -> OriginPolicy:
    return OriginPolicy(
        host=host, port=8000, allowed_hosts=allowed, cors_origins=cors, is_tls=is_tls, has_keys=has_keys
    )


def _rejection(origins: OriginPolicy, headers: Mapping[str, str], method: str = "POST") -> tuple[int, str | None]:
    with pytest.raises(ApiError) as caught:
        origins.check(method, headers)
    return caught.value.status, caught.value.code


@table(
    ("value", "host_port"),
    [
        ("localhost", HostPort("localhost", None)),
        ("LocalHost:8000", HostPort("localhost", 8000)),
        ("localhost.", HostPort("localhost", None)),
        ("127.0.0.1:", HostPort("127.0.0.1", None)),
        ("[::1]:8000", HostPort("::1", 8000)),
        ("[0:0:0:0:0:0:0:1]", HostPort("::1", None)),
        ("my_box.example-1.org:65535", HostPort("my_box.example-1.org", 65535)),
    ],
)
def test_a_host_is_a_name_with_an_optional_port(value: str, host_port: HostPort) -> None:
    assert parse_host(value) == host_port


@table(
    "value",
    [
        "",
        " ",
        ":8000",
        "a b",
        "a,b",
        "user@localhost",
        "localhost/path",
        "localhost\\@evil",
        "localhost#",
        "localhost:65536",
        "localhost:-1",
        "localhost:8000:8000",
        "localhost:٣",
        "localhost\n",
        "[::1",
        "::1",
        "[::1%eth0]",
        "[::g]",
        "[1.2.3.4]",
        "a..b",
        ".",
        "a" * 64,
        "a." * 127 + "aa",
        "ﬀ.org",
    ],
)
def test_invalid_hosts_are_not_parsed(value: str) -> None:
    assert parse_host(value) is None
    assert _rejection(_origins("0.0.0.0", has_keys=True), {"Host": value + "\x00"}) == (400, "invalid_host")


@given(st.text() | st.from_regex(r"\A[\[\]a-z0-9.:%_-]{0,40}\Z"))
def test_parsing_a_host_never_raises_and_normalises(value: str) -> None:
    host_port = parse_host(value)
    if host_port is not None:
        bare = f"[{host_port.name}]" if ":" in host_port.name else host_port.name
        again = bare if host_port.port is None else f"{bare}:{host_port.port}"
        assert parse_host(again) == host_port


@table("method", METHODS)
@table("host", ["localhost", "localhost:8000", "127.0.0.1:9999", "[::1]:1", "LOCALHOST."])
def test_on_loopback_local_names_are_accepted_with_any_port(host: str, method: str) -> None:
    assert _origins().check(method, {"Host": host}) == {}


@table("method", METHODS)
@table("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io:8000", "192.168.1.5", "box", "[::2]"])
def test_on_loopback_other_names_are_rejected_for_every_method(host: str, method: str) -> None:
    assert _rejection(_origins(), {"Host": host}, method) == (403, "host_not_allowed")
    assert _rejection(_origins(has_keys=True), {"Host": host}, method) == (403, "host_not_allowed")


def test_the_error_for_a_host_names_the_setting() -> None:
    with pytest.raises(ApiError, match=r"--allowed-hosts") as caught:
        _origins().check("GET", {"host": "box.example.org"})
    assert "http://127.0.0.1:8000" in caught.value.message
    assert "A reverse proxy must forward the client's Host header." in caught.value.message


@pytest.mark.parametrize("headers", [{}, CIMultiDict([("Host", "localhost"), ("Host", "localhost")])])
def test_a_request_needs_exactly_one_host(headers: dict[str, str]) -> None:
    assert _rejection(_origins(), headers) == (400, "invalid_host")


def test_allowed_hosts_are_added_on_loopback() -> None:
    origins = _origins(allowed=["Box.Example.org", "fe80::1"])
    assert origins.check("GET", {"host": "box.example.org:443"}) == {}
    assert origins.check("GET", {"host": "[fe80::1]"}) == {}
    assert origins.check("GET", {"host": "localhost"}) == {}
    assert _rejection(origins, {"host": "example.org"}) == (403, "host_not_allowed")


@pytest.mark.parametrize("host", ["anything.example.org", "192.168.1.5:8000", "box"])
def test_on_a_public_address_with_keys_any_host_is_accepted_unless_configured(host: str) -> None:
    assert _origins("0.0.0.0", has_keys=True).check("POST", {"host": host}) == {}
    narrow = _origins("0.0.0.0", has_keys=True, allowed=["api.example.org"])
    assert _rejection(narrow, {"host": host}) == (403, "host_not_allowed")
    assert narrow.check("POST", {"host": "api.example.org"}) == {}


def test_on_a_public_address_without_keys_only_bare_hosts_are_accepted() -> None:
    origins = _origins("0.0.0.0")
    for host in ("192.168.1.5:8000", "[fd00::1]", "box", "localhost:8000"):
        assert origins.check("POST", {"host": host}) == {}
    assert _rejection(origins, {"host": "rebound.evil.example:8000"}) == (403, "host_not_allowed")
    assert _origins("box.lan").check("POST", {"host": "box.lan:8000"}) == {}


@table("method", METHODS)
@table(
    "origin",
    [
        "https://evil.example",
        "http://localhost:3000",
        "https://localhost:8000",
        "http://127.0.0.1:8000",
        "http://localhost:8000.evil.example",
        "http://localhost:8000@evil.example",
        "null",
        "",
        "file://",
        "nonsense",
    ],
)
def test_another_origin_is_rejected_for_every_method(origin: str, method: str) -> None:
    headers = {"Host": "localhost:8000", "Origin": origin}
    assert _rejection(_origins(), headers, method) == (403, "origin_not_allowed")
    allowing = _origins(cors=["https://app.example.org"])
    assert _rejection(allowing, headers, method) == (403, "origin_not_allowed")


@table(
    ("host", "origin", "is_tls"),
    [
        ("localhost:8000", "http://localhost:8000", False),
        ("localhost", "http://localhost", False),
        ("localhost:80", "http://localhost", False),
        ("localhost:8000", "https://LOCALHOST:8000", True),
        ("[::1]:8000", "http://[::1]:8000", False),
    ],
)
def test_the_same_origin_is_accepted(host: str, origin: str, is_tls: bool) -> None:
    assert _origins(is_tls=is_tls).check("POST", {"Host": host, "Origin": origin}) == {}


def test_two_origins_are_rejected() -> None:
    headers = CIMultiDict([("Host", "localhost"), ("Origin", "http://localhost"), ("Origin", "http://localhost")])
    assert _rejection(_origins(), headers) == (400, "invalid_origin")


@table(
    ("allowed", "origin"),
    [
        ("https://app.example.org", "https://app.example.org"),
        ("https://App.Example.org:443/", "https://app.example.org"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("app://obsidian.md", "app://obsidian.md"),
    ],
)
def test_an_allowed_origin_gets_cors_headers_without_credentials(allowed: str, origin: str) -> None:
    headers = _origins(cors=[allowed]).check("POST", {"Host": "localhost:8000", "Origin": origin})
    assert headers["Access-Control-Allow-Origin"] == origin
    assert headers["Vary"] == "Origin"
    assert "x-request-id" in headers["Access-Control-Expose-Headers"]
    assert "x-ratelimit-remaining-tokens" in headers["Access-Control-Expose-Headers"]
    assert "Access-Control-Allow-Credentials" not in headers


@pytest.mark.parametrize("origin", ["https://any.example", "null", "file://"])
def test_a_wildcard_allows_every_origin_without_credentials(origin: str) -> None:
    headers = _origins(cors=["*"]).check("GET", {"Host": "localhost", "Origin": origin})
    assert headers["Access-Control-Allow-Origin"] == "*"
    assert "Access-Control-Allow-Credentials" not in headers


def test_a_wildcard_does_not_allow_rebound_host_names() -> None:
    headers = {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"}
    assert _rejection(_origins(cors=["*"]), headers) == (403, "host_not_allowed")


def test_responses_vary_by_origin() -> None:
    assert _origins(cors=["https://app.example.org"]).check("GET", {"host": "localhost"}) == {"Vary": "Origin"}


@table("value", ["null", "app.example.org", "https://a.example/path", "https://u@a.example", ""])
def test_an_invalid_origin_setting_is_rejected_at_startup(value: str) -> None:
    with pytest.raises(ValueError, match="is not an origin"):
        _origins(cors=[value])


@table("value", ["http://box", "box:8000", "a b", "", "*"])
def test_an_invalid_host_setting_is_rejected_at_startup(value: str) -> None:
    with pytest.raises(ValueError, match="is not a host name"):
        _origins(allowed=[value])


PREFLIGHT = {
    "Host": "localhost:8000",
    "Origin": "https://app.example.org",
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "Authorization, content-type,x-stainless-os, x-evil, x-stainless-\u00e9,,",
}


def test_a_preflight_of_an_allowed_origin_gets_the_allowed_headers() -> None:
    reply = _origins(cors=["https://app.example.org"]).preflight("OPTIONS", PREFLIGHT)
    assert reply == {
        "Access-Control-Allow-Origin": "https://app.example.org",
        "Vary": "Origin",
        "Access-Control-Allow-Methods": "GET, HEAD, POST, DELETE, OPTIONS",
        "Access-Control-Allow-Headers": "authorization, content-type, x-stainless-os",
        "Access-Control-Max-Age": "600",
    }


def test_a_preflight_may_request_the_private_network() -> None:
    headers = PREFLIGHT | {"Access-Control-Request-Private-Network": "true"}
    reply = _origins(cors=["*"]).preflight("OPTIONS", headers)
    assert reply is not None
    assert reply["Access-Control-Allow-Private-Network"] == "true"


def test_a_preflight_of_another_origin_is_rejected() -> None:
    with pytest.raises(ApiError) as caught:
        _origins().preflight("OPTIONS", PREFLIGHT)
    assert caught.value.status == 403


def test_a_preflight_of_the_same_origin_needs_no_headers() -> None:
    assert _origins().preflight("OPTIONS", PREFLIGHT | {"Origin": "http://localhost:8000"}) == {}


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_other_requests_are_not_preflights(method: str) -> None:
    origins = _origins(cors=["*"])
    assert origins.preflight(method, {"Host": "localhost", "Origin": "https://app.example.org"}) is None
    assert origins.preflight("POST", PREFLIGHT) is None


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_cross_site_requests_without_an_origin_are_rejected(site: str) -> None:
    with pytest.raises(ApiError) as caught:
        _origins().check_fetch_site({"Sec-Fetch-Site": site})
    assert caught.value.status == 403


@table(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "https://app.example.org"},
    ],
)
def test_direct_same_origin_and_checked_requests_are_accepted(headers: dict[str, str]) -> None:
    _origins().check_fetch_site(headers)


@given(
    st.dictionaries(
        st.sampled_from(["Host", "Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers"]),
        st.text(max_size=30) | st.sampled_from(["localhost", "http://localhost", "https://evil.example", "POST"]),
    ),
    st.sampled_from(METHODS),
)
def test_arbitrary_headers_are_accepted_or_rejected_without_a_crash(headers: dict[str, str], method: str) -> None:
    origins = _origins(cors=["https://app.example.org"])
    for judge in (origins.check, origins.preflight):
        try:
            judge(method, headers)
        except ApiError as refused:
            assert refused.status in {400, 403}  # noqa: PT017 - both branches of the try are right


@table(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("box", False),
    ],
)
def test_all_forms_of_loopback_are_recognised(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local
