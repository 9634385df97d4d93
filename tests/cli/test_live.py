"""`fix` is live: each frame is written before the next one is read, and read boundaries do not matter."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.captures import CALLS, CHOICES_FIRST, COMPLETIONS, CUT, FILES, HEAD, RIGHT, ROLES
from tests.cli.live import Live, bytes_of, run_in_pieces
from tests.cli.run import CommandResult, Run


def _frames(body: bytes) -> list[bytes]:
    return [frame + b"\n\n" for frame in body.split(b"\n\n") if frame]


def _choice(frame: bytes) -> dict[str, object]:
    choice: dict[str, object] = json.loads(frame.removeprefix(b"data: "))["choices"][0]
    return choice


@pytest.mark.parametrize("options", [(), ("--endpoint", "chat")], ids=["endpoint detected", "endpoint given"])
def test_each_frame_of_a_chat_comes_back_before_the_next_is_sent(options: tuple[str, ...], folder: Path) -> None:
    first, second, last = _frames(ROLES)
    with Live("fix", *options, cwd=folder) as fix:
        fix.write(first)
        assert _choice(fix.read_frame())["delta"] == {"role": "assistant", "content": ""}
        assert _choice(fix.read_frame())["delta"] == {"content": "Hello"}
        fix.write(second)
        assert _choice(fix.read_frame())["delta"] == {"content": " world"}
        fix.write(last)
        ran = fix.end()
    assert ran.code == 0
    assert ran.out.endswith(b'"delta":{},"logprobs":null,"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
    assert "delta-role-once (2 times" in ran.notes


@pytest.mark.parametrize("options", [(), ("--endpoint", "completions")], ids=["endpoint detected", "endpoint given"])
@pytest.mark.parametrize("stream", [COMPLETIONS, CHOICES_FIRST], ids=["object first", "choices first"])
def test_each_frame_of_a_completion_comes_back_before_the_next_is_sent(
    stream: bytes, options: tuple[str, ...], folder: Path
) -> None:
    *texts, last = _frames(stream)
    with Live("fix", *options, cwd=folder) as fix:
        for frame in texts:
            fix.write(frame)
            assert _choice(fix.read_frame()) == _choice(frame)
        fix.write(last)
        ran = fix.end()
    assert ran.code == 0
    assert ran.out.endswith(b'"text":"","logprobs":null,"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')


def test_half_a_frame_is_held_until_the_other_half_comes(folder: Path) -> None:
    first, second, *_ = _frames(RIGHT)
    with Live("fix", cwd=folder) as fix:
        fix.write(first + second[:-30])
        assert fix.read_frame() == first
        fix.write(second[-30:])
        assert fix.read_frame() == second


def test_a_right_stream_comes_back_as_it_was_frame_by_frame(folder: Path) -> None:
    *frames, done = _frames(RIGHT)
    with Live("fix", cwd=folder) as fix:
        for frame in frames[:-1]:
            fix.write(frame)
            assert fix.read_frame() == frame
        fix.write(frames[-1] + done)
        ran = fix.end()
    assert (ran.code, ran.out, ran.notes) == (0, frames[-1] + done, "fix: nothing to repair\n")


STREAMS = {
    "chat": ROLES,
    "right chat": RIGHT,
    "tool calls": CALLS,
    "completions": COMPLETIONS,
    "CRLF": FILES["crlf.txt"],
    "cut off": CUT,
    "cut within a frame": RIGHT[:-60],
    "wide characters": RIGHT.replace(b"Hello", "Grüße 🌍".encode()),
    "a byte-order mark": b"\xef\xbb\xbf" + ROLES,
    "a head": HEAD + ROLES,
    "a head and chunks": FILES["curl-raw.txt"],
    "not streamed": FILES["whole.json"],
    "an error": FILES["error.json"],
    "garbage": FILES["garbage.txt"],
    "white space first": b"\n\n" + ROLES,
}


@pytest.mark.tier3
@pytest.mark.parametrize("name", STREAMS)
def test_byte_by_byte_gives_what_one_write_gives(name: str, here: Run, folder: Path) -> None:
    data = STREAMS[name]
    assert _plain(run_in_pieces(bytes_of(data), "fix", cwd=folder)) == _plain(here("fix", stdin=data))


@pytest.mark.parametrize("name", ["chat", "a byte-order mark", "not streamed", "white space first"])
def test_byte_by_byte_is_the_same_where_the_endpoint_is_known(name: str, here: Run, folder: Path) -> None:
    data, words = STREAMS[name], ("fix", "--endpoint", "chat")
    assert _plain(run_in_pieces(bytes_of(data), *words, cwd=folder)) == _plain(here(*words, stdin=data))


def test_byte_by_byte_is_the_same_where_a_completion_begins_with_its_choices(here: Run, folder: Path) -> None:
    ran = run_in_pieces(bytes_of(CHOICES_FIRST), "fix", cwd=folder)
    assert ran == here("fix", stdin=CHOICES_FIRST)


def test_byte_by_byte_is_the_same_for_a_head_where_the_endpoint_is_known(here: Run, folder: Path) -> None:
    data, words = HEAD + ROLES, ("fix", "--endpoint", "chat")
    assert run_in_pieces(bytes_of(data), *words, cwd=folder) == here(*words, stdin=data)


def test_byte_by_byte_is_judged_as_one_write_is(here: Run, folder: Path) -> None:
    assert run_in_pieces(bytes_of(ROLES), "lint", cwd=folder) == here("lint", stdin=ROLES)


def _plain(ran: CommandResult) -> CommandResult:
    """The run without the ids that were made."""
    return CommandResult(ran.code, re.sub(rb"call_[0-9a-f]{24}", b"call_MADE", ran.out), ran.err)
