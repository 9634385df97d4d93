"""Recording of upstream responses: exact bytes, timestamps, no secrets."""

import errno
import json
import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.mock.raw_client import send_request
from tests.recorded.traces import recorded_traces
from tests.table import table
from welldone.cli.captures import read_bytes, read_reply, read_trace_file
from welldone.mock.script import MockScript, reply_from_trace
from welldone.mock.server import start_mock_server
from welldone.rules.judge import judge
from welldone.server.observe import recording
from welldone.server.observe.recording import TraceRecorder, TraceWriter

CHAT = "/v1/chat/completions"
REQUEST: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
HEADERS = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
KEY = 'sk-"secret\\key'


class Clock:
    """A manual clock."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def recorder_in(
    folder: Path, *, secrets: tuple[str, ...] = (KEY,), clock: Clock | None = None
) -> Iterator[TraceRecorder]:
    """A running recorder; on exit everything is written."""
    recorder = TraceRecorder(folder, secrets=secrets, clock=clock or Clock())
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.close()


def begin(recorder: TraceRecorder, *, request: dict[str, Any] | None = None, upstream: str = "lab") -> TraceWriter:
    """The trace of a response that has begun."""
    trace_writer = recorder.begin(CHAT, request or REQUEST, upstream, "req-1")
    trace_writer.head(200, HEADERS)
    return trace_writer


def say(recorder: TraceRecorder, *pieces: bytes, error: str | None = None, **how: Any) -> None:  # noqa: ANN401 - begin's
    """Record a response."""
    trace_writer = begin(recorder, **how)
    for piece in pieces:
        trace_writer.data(piece)
    trace_writer.end(error)


def names_in(folder: Path) -> list[str]:
    """All files in the folder."""
    return sorted(path.name for path in folder.iterdir())


def only_record(folder: Path) -> tuple[Path, dict[str, Any], bytes]:
    """The only trace in the folder."""
    body, record = [folder / name for name in names_in(folder)]
    assert (body.suffix, record.suffix, body.stem) == (".body", ".json", record.stem)
    fields: dict[str, Any] = json.loads(record.read_bytes())
    return record, fields, body.read_bytes()


def test_a_trace_has_the_request_the_response_and_times(tmp_path: Path) -> None:
    clock = Clock()
    with recorder_in(tmp_path, clock=clock) as recorder:
        trace_writer = recorder.begin(CHAT, REQUEST, "lab", "req-1")
        clock.now += 0.25
        trace_writer.head(200, HEADERS | {"set-cookie": "a=b", "Server": "x"})
        trace_writer.data(b"data: 1\n\n")
        clock.now += 0.5
        trace_writer.data(b"\xff\x00")
        trace_writer.end(None)
    _, record, body = only_record(tmp_path)
    assert body == b"data: 1\n\n\xff\x00"
    assert record.pop("body").endswith(".body")
    assert record == {
        "server": "lab",
        "endpoint": CHAT,
        "method": "POST",
        "request_id": "req-1",
        "request": REQUEST,
        "status": "HTTP/1.1 200",
        "headers": [["content-type", "text/event-stream"], ["transfer-encoding", "chunked"], ["Server", "x"]],
        "head_s": 0.25,
        "pieces": [[0.25, 9], [0.75, 2]],
        "body_complete": True,
    }
    assert (recorder.written, recorder.withheld, recorder.dropped) == (1, 0, 0)


def test_an_aborted_response_is_recorded_with_the_error(tmp_path: Path) -> None:
    with recorder_in(tmp_path) as recorder:
        say(recorder, b"abc", error="the connection was lost")
    _, record, _ = only_record(tmp_path)
    assert (record["body_complete"], record["error"]) == (False, "the connection was lost")


def test_a_request_without_a_response_is_recorded(tmp_path: Path) -> None:
    with recorder_in(tmp_path) as recorder:
        recorder.begin(CHAT, REQUEST, "lab", "req-1").end("no connection to the server")
    _, record, body = only_record(tmp_path)
    assert (record["status"], record["headers"], record["pieces"], body) == (None, [], [], b"")


@pytest.mark.parametrize(
    "name", ["llamacpp/chat_emoji_stream", "quoted/ik_467_before", "vllm/chat_tools_required_stream"]
)
def test_a_recording_can_be_linted_and_replayed(name: str, tmp_path: Path) -> None:
    trace = next(one.trace for one in recorded_traces() if one.name == name)
    with recorder_in(tmp_path) as recorder:
        trace_writer = recorder.begin(CHAT, trace.request or {}, "lab", "req-1")
        trace_writer.head(trace.status or 200, {name.lower(): value for name, value in trace.headers or ()})
        for start in range(0, len(trace.body), 100):
            trace_writer.data(trace.body[start : start + 100])
        trace_writer.end(None)
    path, _, _ = only_record(tmp_path)
    again = read_reply(read_bytes(str(path)), str(path), endpoint=None, request=None)
    assert (again.body, again.request, again.status, again.complete) == (trace.body, trace.request, trace.status, True)
    # Chunk sizes and some headers are not recorded; all frames are.
    rules = [[one.rule for one in judge(each).findings if one.frame is not None] for each in (trace, again)]
    assert rules[0] == rules[1]

    async def play() -> None:
        reply = reply_from_trace(*read_trace_file(str(path)))
        async with await start_mock_server(MockScript(posts=(reply,))) as server:
            heard = await send_request(server.port)
        assert (heard.body, heard.status, heard.complete) == (trace.body, trace.status, True)
        assert heard.chunk_sizes is not None
        assert set(heard.chunk_sizes[:-1]) == {100}

    run(play())


@table("spelled", [KEY, json.dumps(KEY)[1:-1]])
@table("cut", [0, 1, 7])
def test_a_body_with_a_secret_is_not_written(spelled: str, cut: int, tmp_path: Path) -> None:
    data = f"data: {spelled} \n\n".encode()
    split = data.index(b"sk-") + cut
    with recorder_in(tmp_path) as recorder:
        say(recorder, b"x" * 20_000, data[:split], data[split:] + b"y" * 40_000, b"more")
    assert names_in(tmp_path) == []
    assert (recorder.written, recorder.withheld, recorder.dropped) == (0, 1, 0)


def test_a_secret_across_two_writes_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_FLUSH_BYTES", 1)
    with recorder_in(tmp_path) as recorder:
        say(recorder, *(bytes([byte]) for byte in f"data: {KEY}\n\n".encode()))
        say(recorder, *(bytes([byte]) for byte in b"data: harmless\n\n"))
    assert only_record(tmp_path)[2] == b"data: harmless\n\n"
    assert recorder.withheld == 1


def test_secrets_are_redacted_elsewhere(tmp_path: Path) -> None:
    request = REQUEST | {"user": f"I am {KEY}!", KEY: [f"{KEY}{KEY}"], "text": 'a "b\\" \n c'}
    with recorder_in(tmp_path) as recorder:
        trace_writer = recorder.begin(CHAT, request, KEY, f"id-{KEY}")
        trace_writer.head(200, {"x-request-id": KEY, "authorization": "Bearer other"})
        trace_writer.end(f"{KEY} was refused")
    path, record, _ = only_record(tmp_path)
    assert record["request"] == REQUEST | {
        "user": "I am [hidden]!",
        "[hidden]": ["[hidden][hidden]"],
        "text": 'a "b\\" \n c',
    }
    assert record["headers"] == [["x-request-id", "[hidden]"]]
    assert (record["server"], record["error"]) == ("[hidden]", "[hidden] was refused")
    assert "secret" not in path.read_text() + path.name


def test_redaction_keeps_json_escapes_intact(tmp_path: Path) -> None:
    with recorder_in(tmp_path, secrets=("n1234567", "n12345678")) as recorder:
        say(recorder, request={"messages": ["\n1234567 n123456789"]})
    assert only_record(tmp_path)[1]["request"] == {"messages": ["\n1234567 [hidden]9"]}


def test_a_key_that_is_a_common_word_does_not_prevent_recording(tmp_path: Path) -> None:
    with recorder_in(tmp_path, secrets=("ollama",)) as recorder:
        say(recorder, b'{"system_fingerprint":"fp_ollama"}')
    assert only_record(tmp_path)[2] == b'{"system_fingerprint":"fp_ollama"}'


@table("upstream", ["../../etc/passwd", "a b\n\0c", "", "...", "x" * 500, "über"])
def test_file_names_are_safe(upstream: str, tmp_path: Path) -> None:
    with recorder_in(tmp_path / "deep" / "folder") as recorder:
        say(recorder, b"x", upstream=upstream)
    path, record, _ = only_record(tmp_path / "deep" / "folder")
    assert record["server"] == upstream
    assert path.name.isascii()
    assert not set(path.name) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert "v1-chat-completions" in path.name


def test_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    with recorder_in(folder) as recorder:
        say(recorder, b"x")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert (stat.S_IMODE(folder.stat().st_mode), modes) == (0o700, {0o600})


def test_unfinished_traces_leave_no_files(tmp_path: Path) -> None:
    with recorder_in(tmp_path) as recorder:
        trace_writer = begin(recorder)
        trace_writer.data(b"x" * 100_000)
        dropped = begin(recorder)
        dropped.data(b"y" * 100_000)
        dropped.drop()
        dropped.data(b"z")
        dropped.end(None)
    trace_writer.data(b"late")
    trace_writer.end(None)
    assert names_in(tmp_path) == []
    assert recorder.written == 0


def test_a_body_beyond_the_limit_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "BODY_LIMIT_BYTES", 10)
    with recorder_in(tmp_path) as recorder:
        say(recorder, b"12345", b"67890")
        say(recorder, b"12345", b"678901", b"2")
    assert only_record(tmp_path)[2] == b"1234567890"
    assert (recorder.written, recorder.dropped) == (1, 1)


def test_the_queue_is_bounded_and_drops_are_logged_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recording, "WAITING_LIMIT_BYTES", 10_000)
    clock = Clock()
    recorder = TraceRecorder(tmp_path, clock=clock)  # not started: nothing is written yet
    say(recorder, b"x" * 9_000)
    with caplog.at_level(logging.WARNING):
        say(recorder, b"x" * 2_000)
        say(recorder, b"x" * 2_000)
        assert [record.message for record in caplog.records] == ["traces were not recorded"]
        clock.now += recording.LOSS_LOG_INTERVAL_S
        say(recorder, b"x" * 2_000)
        assert len(caplog.records) == 2
    assert recorder.dropped == 3
    recorder.start()
    recorder.close()
    assert recorder.written == 1


def test_queue_space_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "BODY_LIMIT_BYTES", 30_000)
    with recorder_in(tmp_path) as recorder:
        for size in (10, 20_000, 40_000):
            say(recorder, b"x" * size, b"y")
        begin(recorder).drop()
    assert recorder._reserved_bytes == recorder._released_bytes > 0
    assert (recorder.written, recorder.dropped) == (2, 2)


def test_the_number_of_timestamps_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_PIECES_LIMIT", 2)
    with recorder_in(tmp_path) as recorder:
        say(recorder, b"a", b"bb", b"ccc", b"dddd")
    _, record, body = only_record(tmp_path)
    assert ([size for _, size in record["pieces"]], body) == ([1, 9], b"abbcccdddd")


def _full(*_: object, **__: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _on_append(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_private", _full)


def _on_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "rename", _full)


@pytest.mark.parametrize("break_disk", [_on_append, _on_rename])
def test_a_disk_error_pauses_the_recording_and_is_logged_once(
    break_disk: Callable[[pytest.MonkeyPatch], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    with caplog.at_level(logging.ERROR):
        with monkeypatch.context() as patch, recorder_in(tmp_path, clock=clock) as recorder:
            break_disk(patch)
            going, other = begin(recorder), begin(recorder)
            for trace_writer in (going, other):
                for _ in range(3):
                    trace_writer.data(b"x" * 20_000)
                trace_writer.end(None)
        assert [record.message for record in caplog.records] == ["recording is paused"]
        assert (recorder.written, recorder.dropped) == (0, 2)
        assert names_in(tmp_path) == []


def test_recording_resumes_after_the_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    recorder = TraceRecorder(tmp_path, clock=clock)
    with monkeypatch.context() as patch:
        _on_append(patch)
        say(recorder, b"lost")
        recorder._jobs.put(None)
        recorder._write_all()  # run the thread's loop here
    say(recorder, b"in the pause")
    clock.now += recording.DISK_ERROR_PAUSE_S
    say(recorder, b"after it")
    recorder.start()
    recorder.close()
    assert only_record(tmp_path)[2] == b"after it"
    assert (recorder.written, recorder.dropped) == (1, 2)


def test_an_impossible_folder_is_an_error_at_startup(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        TraceRecorder(tmp_path / "file" / "folder").start()


def test_a_written_trace_is_found_by_request_id(tmp_path: Path) -> None:
    with recorder_in(tmp_path) as recorder:
        trace_writer = begin(recorder)
        assert recorder.find("req-1") is None
        trace_writer.end(None)
    name = recorder.find("req-1")
    assert names_in(tmp_path) == [f"{name}.body", f"{name}.json"]


def test_only_recent_traces_are_found(tmp_path: Path) -> None:
    with recorder_in(tmp_path) as recorder:
        for number in (0, *range(recording.FINDABLE_TRACES + 1)):
            recorder.begin(CHAT, REQUEST, "lab", f"req-{number}").end(None)
    findable = [number for number in range(recording.FINDABLE_TRACES + 1) if recorder.find(f"req-{number}")]
    assert findable == list(range(1, recording.FINDABLE_TRACES + 1))


def test_a_trace_that_was_withheld_is_not_found(tmp_path: Path) -> None:
    with recorder_in(tmp_path) as recorder:
        say(recorder, KEY.encode())
    assert recorder.find("req-1") is None
