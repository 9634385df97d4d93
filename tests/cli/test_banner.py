"""Startup banner of the server."""

import json
import shlex
from pathlib import Path

import pytest

from welldone.cli import banner
from welldone.config.model import ModelSettings
from welldone.config.server import Config, KeySettings, ServeSettings
from welldone.config.upstream import UpstreamSettings


def banner_for(
    host: str = "127.0.0.1", *, name: str = "tiny", has_keys: bool = False, generated_key: str | None = None
) -> str:
    """Return the banner of a server on this address."""
    config = Config(server=ServeSettings(host=host), models=(ModelSettings(name=name),))
    return "\n".join(banner.banner_lines(config, 8000, has_keys=has_keys, generated_key=generated_key, hostname="box"))


def curl_words(text: str) -> list[str]:
    """Return the words of the curl command, as a shell parses them."""
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("  curl"))
    return shlex.split("\n".join(lines[first : lines.index("", first)]).replace("\\\n", " "))


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("localhost", "http://localhost:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("[::1]", "http://[::1]:8000"),
    ],
)
def test_the_url_is_reachable_from_this_machine(host: str, url: str) -> None:
    text = banner_for(host)
    assert text.splitlines()[0].endswith(f" on {url}/v1")
    assert f"{url}/v1/chat/completions" in curl_words(text)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_public_address_is_shown_with_the_host_name(host: str) -> None:
    assert "http://box:8000/v1" in banner_for(host)
    assert "box" not in banner_for()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_a_public_server_without_a_key_has_a_warning(host: str) -> None:
    assert "warning" in banner_for(host)
    assert "warning" not in banner_for(host, has_keys=True)
    assert "warning" not in banner_for()


@pytest.mark.parametrize("name", ["tiny", "it's", 'a "b"', "a\\b", "$HOME `x`", "größe"])
def test_the_line_to_try_is_right_when_it_is_curl_words(name: str) -> None:
    words = curl_words(banner_for(name=name))
    assert json.loads(words[words.index("-d") + 1])["model"] == name


def test_a_generated_key_is_shown_and_a_configured_one_is_not() -> None:
    assert "Authorization: Bearer wd-made" in curl_words(banner_for(has_keys=True, generated_key="wd-made"))
    text = banner_for(has_keys=True)
    assert '"Authorization: Bearer $WELLDONE_API_KEY"' in text
    assert "reads it from WELLDONE_API_KEY" in text


def test_with_tls_the_curl_command_trusts_the_certificate() -> None:
    server = ServeSettings(ssl_cert_file=Path("/my files/c.pem"), ssl_key_file=Path("/k.pem"))
    config = Config(server=server, models=(ModelSettings(name="tiny"),))
    words = curl_words("\n".join(banner.banner_lines(config, 8000, has_keys=False, generated_key=None)))
    assert words[words.index("--cacert") + 1] == "/my files/c.pem"
    assert "https://127.0.0.1:8000/v1/chat/completions" in words


LAB = UpstreamSettings(name="lab", url="http://gpu:8000/canary-0123456789/v1", key="canary")
OPENAI = UpstreamSettings(name="openai", url="https://api.openai.com/v1", models=("gpt-*", "o4-mini"))


def gateway_banner(
    *upstreams: UpstreamSettings,
    models: tuple[ModelSettings, ...] = (),
    keys: tuple[KeySettings, ...] = (),
    server: ServeSettings | None = None,
    listed: str | None = None,
    **routes: tuple[str, ...],
) -> str:
    """Return the banner of a gateway to these upstreams."""
    config = Config(server=server or ServeSettings(), models=models, upstreams=upstreams, routes=routes, keys=keys)
    has_keys = bool(keys or config.server.api_keys)
    text = "\n".join(
        banner.banner_lines(config, 8000, has_keys=has_keys, generated_key=None, listed_model=listed, hostname="box")
    )
    assert "canary" not in text
    return text


def test_upstreams_have_a_line_each_without_secrets() -> None:
    text = gateway_banner(LAB, OPENAI)
    assert text.splitlines()[0].endswith(" serves the models of lab, openai on http://127.0.0.1:8000/v1")
    assert "  upstream  lab     http://gpu:8000/…/v1, its own list\n" in text
    assert "  upstream  openai  https://api.openai.com/v1, gpt-*, o4-mini\n" in text


def test_only_the_first_upstreams_are_shown() -> None:
    text = gateway_banner(*(UpstreamSettings(name=f"u{number}", url="http://u/v1") for number in range(12)))
    assert "serves the models of u0, u1, u2, u3, u4 … on" in text
    assert text.count("  upstream  ") == 10
    assert "            and 2 more\n" in text


def test_the_curl_command_uses_a_known_model() -> None:
    small = (ModelSettings(name="small"),)
    for text, name in [
        (gateway_banner(LAB, OPENAI), "o4-mini"),
        (gateway_banner(LAB, OPENAI, fast=("qwen@lab",)), "fast"),
        (gateway_banner(LAB, models=small), "small"),
        (gateway_banner(LAB, listed="qwen"), "qwen"),
        (gateway_banner(OPENAI, listed="qwen"), "o4-mini"),
    ]:
        words = curl_words(text)
        assert json.loads(words[words.index("-d") + 1])["model"] == name
    assert "serves small and the models of lab on" in gateway_banner(LAB, models=small)


def test_without_a_known_model_the_curl_command_lists_models() -> None:
    assert curl_words(gateway_banner(LAB)) == ["curl", "-N", "http://127.0.0.1:8000/v1/models"]


def test_routes_workers_and_certificates_that_are_not_checked_are_banner_for() -> None:
    insecure = UpstreamSettings(name="self-signed", url="https://lab/v1", insecure=True)
    to = ("m@lab",)
    text = gateway_banner(LAB, insecure, server=ServeSettings(workers=4), r0=to, r1=to, r2=to, r3=to, r4=to, r5=to)
    assert "\n  routes    r0, r1, r2, r3, r4 …\n  workers   4\n" in text
    assert "\n  warning   insecure = true: the certificate of self-signed is not verified\n" in text
    assert not {"routes", "workers", "warning"} & set(gateway_banner(LAB).split())


def test_named_keys_are_shown_by_name() -> None:
    keys = tuple(KeySettings(name=name, key=f"canary-{name}") for name in ("ci", "team"))
    text = gateway_banner(LAB, keys=keys)
    assert "Authorization: Bearer YOUR_KEY" in curl_words(text)
    assert "\n  API key   that of ci, team: replace YOUR_KEY above with it\n" in text
    both = gateway_banner(LAB, keys=keys, server=ServeSettings(api_keys=("canary-0",)))
    assert "$WELLDONE_API_KEY" in both
    assert "\n            or that of ci, team\n" in both
