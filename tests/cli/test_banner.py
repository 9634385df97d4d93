"""What the server says when it listens."""

import json
import shlex
from pathlib import Path

import pytest

from welldone.cli import banner
from welldone.config.model import ModelSettings
from welldone.config.server import Config, KeySettings, ServeSettings
from welldone.config.upstream import UpstreamSettings


def said(host: str = "127.0.0.1", *, name: str = "tiny", has_keys: bool = False, made: str | None = None) -> str:
    """The banner of a server on this address."""
    config = Config(server=ServeSettings(host=host), models=(ModelSettings(name=name),))
    return "\n".join(banner.banner_lines(config, 8000, has_keys=has_keys, generated_key=made, hostname="box"))


def pasted(text: str) -> list[str]:
    """The words of the line to try, as a shell reads them."""
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
def test_the_address_is_one_that_this_machine_can_ask(host: str, url: str) -> None:
    text = said(host)
    assert text.splitlines()[0].endswith(f" on {url}/v1")
    assert f"{url}/v1/chat/completions" in pasted(text)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_how_others_reach_it_is_said_where_they_can(host: str) -> None:
    assert "http://box:8000/v1" in said(host)
    assert "box" not in said()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_a_server_without_a_key_that_others_reach_is_warned_about(host: str) -> None:
    assert "warning" in said(host)
    assert "warning" not in said(host, has_keys=True)
    assert "warning" not in said()


@pytest.mark.parametrize("name", ["tiny", "it's", 'a "b"', "a\\b", "$HOME `x`", "größe"])
def test_the_line_to_try_is_right_when_it_is_pasted(name: str) -> None:
    words = pasted(said(name=name))
    assert json.loads(words[words.index("-d") + 1])["model"] == name


def test_a_key_that_was_made_is_shown_and_one_that_was_chosen_is_named() -> None:
    assert "Authorization: Bearer wd-made" in pasted(said(has_keys=True, made="wd-made"))
    text = said(has_keys=True)
    assert '"Authorization: Bearer $WELLDONE_API_KEY"' in text
    assert "WELLDONE_API_KEY, which must hold it" in text


def test_with_tls_the_line_to_try_trusts_the_certificate() -> None:
    server = ServeSettings(ssl_cert_file=Path("/my files/c.pem"), ssl_key_file=Path("/k.pem"))
    config = Config(server=server, models=(ModelSettings(name="tiny"),))
    words = pasted("\n".join(banner.banner_lines(config, 8000, has_keys=False, generated_key=None)))
    assert words[words.index("--cacert") + 1] == "/my files/c.pem"
    assert "https://127.0.0.1:8000/v1/chat/completions" in words


LAB = UpstreamSettings(name="lab", url="http://gpu:8000/canary-0123456789/v1", key="canary")
OPENAI = UpstreamSettings(name="openai", url="https://api.openai.com/v1", models=("gpt-*", "o4-mini"))


def before(
    *upstreams: UpstreamSettings,
    models: tuple[ModelSettings, ...] = (),
    keys: tuple[KeySettings, ...] = (),
    server: ServeSettings | None = None,
    listed: str | None = None,
    **routes: tuple[str, ...],
) -> str:
    """The banner of a server in front of these upstreams."""
    config = Config(server=server or ServeSettings(), models=models, upstreams=upstreams, routes=routes, keys=keys)
    has_keys = bool(keys or config.server.api_keys)
    text = "\n".join(
        banner.banner_lines(config, 8000, has_keys=has_keys, generated_key=None, listed_model=listed, hostname="box")
    )
    assert "canary" not in text
    return text


def test_upstreams_have_a_line_each_without_what_may_be_a_secret() -> None:
    text = before(LAB, OPENAI)
    assert text.splitlines()[0].endswith(" serves the models of lab, openai on http://127.0.0.1:8000/v1")
    assert "  upstream  lab     http://gpu:8000/…/v1, its own list\n" in text
    assert "  upstream  openai  https://api.openai.com/v1, gpt-*, o4-mini\n" in text


def test_of_many_upstreams_the_first_are_shown() -> None:
    text = before(*(UpstreamSettings(name=f"u{number}", url="http://u/v1") for number in range(12)))
    assert "serves the models of u0, u1, u2, u3, u4 … on" in text
    assert text.count("  upstream  ") == 10
    assert "            and 2 more\n" in text


def test_the_line_to_try_names_a_model_that_is_known() -> None:
    small = (ModelSettings(name="small"),)
    for text, name in [
        (before(LAB, OPENAI), "o4-mini"),
        (before(LAB, OPENAI, fast=("qwen@lab",)), "fast"),
        (before(LAB, models=small), "small"),
        (before(LAB, listed="qwen"), "qwen"),
        (before(OPENAI, listed="qwen"), "o4-mini"),
    ]:
        words = pasted(text)
        assert json.loads(words[words.index("-d") + 1])["model"] == name
    assert "serves small and the models of lab on" in before(LAB, models=small)


def test_where_no_model_is_known_the_line_to_try_lists_them() -> None:
    assert pasted(before(LAB)) == ["curl", "-N", "http://127.0.0.1:8000/v1/models"]


def test_routes_workers_and_certificates_that_are_not_checked_are_said() -> None:
    lax = UpstreamSettings(name="lax", url="https://lax/v1", insecure=True)
    to = ("m@lab",)
    text = before(LAB, lax, server=ServeSettings(workers=4), r0=to, r1=to, r2=to, r3=to, r4=to, r5=to)
    assert "\n  routes    r0, r1, r2, r3, r4 …\n  workers   4\n" in text
    assert "\n  warning   insecure = true: nobody checks the certificate of lax\n" in text
    assert not {"routes", "workers", "warning"} & set(before(LAB).split())


def test_keys_are_called_by_their_names() -> None:
    keys = tuple(KeySettings(name=name, key=f"canary-{name}") for name in ("ci", "team"))
    text = before(LAB, keys=keys)
    assert "Authorization: Bearer YOUR_KEY" in pasted(text)
    assert "\n  API key   that of ci, team: write it instead of YOUR_KEY in the line above\n" in text
    both = before(LAB, keys=keys, server=ServeSettings(api_keys=("canary-0",)))
    assert "$WELLDONE_API_KEY" in both
    assert "\n            or that of ci, team\n" in both
