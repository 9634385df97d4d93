"""`welldone bench`: the command line of inference-benchmarker, report files, usage errors and exit codes."""

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.live import Live
from tests.cli.run import Run, run
from tests.cli.test_mock import Mock, mocking

OPTIONS = "num_tokens=20,max_tokens=22,min_tokens=18,variance=1"
QUICK = ("--duration", "200ms", "--warmup", "100ms", "--prompt-options", OPTIONS, "--decode-options", OPTIONS)


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mock]:
    with mocking(cwd=tmp_path_factory.mktemp("mock")) as running:
        yield running


def _url(mock: Mock) -> str:
    return f"http://127.0.0.1:{mock.port}/v1"


def test_the_command_line_of_inference_benchmarker_is_accepted(mock: Mock, here: Run, tmp_path: Path) -> None:
    words = f"""--no-console --prompt-options {OPTIONS} --decode-options {OPTIONS} --url {_url(mock)} --rates 20.0
        --max-vus 800 --duration 500ms --warmup 100ms --benchmark-kind rate --model-name phi-4
        --tokenizer-name microsoft/phi-4 --extra-meta engine=mock,tp=1 --run-id abc --results-dir results"""
    ran = here("bench", *words.split(), cwd=tmp_path)
    shown = ran.out.decode()
    assert ran.code == 0, ran.notes
    for word in ("Max VUs", "Benchmark Kind", "QPS", "TTFT (avg)", "Error Rate", "constant@20.00req/s", "10/10"):
        assert word in shown
    (path,) = (tmp_path / "results").glob("microsoft_phi-4_*.json")
    written = json.loads(path.read_bytes())
    assert written["config"]["model_name"] == "phi-4"
    assert (written["config"]["meta"], written["config"]["run_id"]) == ({"engine": "mock", "tp": "1"}, "abc")
    assert [result["id"] for result in written["results"]] == ["warmup", "constant@20.00req/s"]
    assert written["results"][1]["successful_requests"] == 10


@pytest.mark.tier3
@pytest.mark.parametrize(("time", "seconds"), [("200ms", 0.2), ("0m 300ms", 0.3), ("0min0.4secs", 0.4)])
def test_durations_have_the_syntax_of_inference_benchmarker(
    mock: Mock, tmp_path: Path, time: str, seconds: float
) -> None:
    ran = run("bench", _url(mock), "--concurrency", "1", *QUICK, "--warmup", "0s", "-d", time, "--json", cwd=tmp_path)
    assert ran.code == 0, ran.notes
    report = json.loads(ran.out)
    assert report["config"]["duration_s"] == seconds
    assert [step["id"] for step in report["steps"]] == ["concurrency@1"]


def test_without_options_the_run_is_short_and_writes_no_file(mock: Mock, tmp_path: Path) -> None:
    with Live("bench", _url(mock), "--no-console", cwd=tmp_path) as live:
        assert live.process.stderr is not None
        plan = live.process.stderr.readline().decode()
        live.process.send_signal(signal.SIGINT)
        live.end()
    assert plan == "quick with 1, 4 users: about 100 s, at most 2.07 min; -b sweep is the full run\n"
    assert [*tmp_path.iterdir()] == []


@pytest.mark.tier3
@pytest.mark.parametrize(
    ("words", "plan"),
    [
        ("-b sweep", "sweep: about 22.5 min, at most 28.5 min\n"),
        ("--max-vus 2 -d 1s -w 1s --grace 0s", "sweep: about 12 s, at most 12 s\n"),
        ("--rates 1 --rates 2 -d 10s -w 0s", "rate: about 20 s, at most 80 s\n"),
        ("-b throughput --against URL -d 1m", "throughput: about 3 min, at most 5 min\n"),
    ],
)
def test_the_expected_duration_is_printed_at_the_start(mock: Mock, tmp_path: Path, words: str, plan: str) -> None:
    with Live("bench", _url(mock), "-n", *words.replace("URL", _url(mock)).split(), cwd=tmp_path) as live:
        assert live.process.stderr is not None
        assert live.process.stderr.readline().decode() == plan
        live.process.send_signal(signal.SIGTERM)
        live.end()


@pytest.mark.tier3
def test_the_tables_fit_the_terminal_and_a_log(mock: Mock, tmp_path: Path) -> None:
    words = ("bench", _url(mock), "--concurrency", "1,2,3,4", *QUICK)
    wide = run(*words, cwd=tmp_path, COLUMNS="220").out.decode()
    narrow = run(*words, cwd=tmp_path).out.decode()
    assert max(map(len, wide.splitlines())) > 80 >= max(map(len, narrow.splitlines()))
    for word in ("Decoded tokens per req (avg)", "concurrency@4", "Throughput"):
        assert word in narrow


def test_the_format_of_a_report_follows_its_extension(mock: Mock, here: Run, tmp_path: Path) -> None:
    paths = [tmp_path / f"bench{suffix}" for suffix in (".json", ".csv", ".html")]
    words = [word for path in paths for word in ("--report", str(path))]
    ran = here("bench", _url(mock), "--concurrency", "1,2", *QUICK, *words)
    assert ran.code == 0, ran.notes
    assert all(path.stat().st_size > 100 for path in paths)
    assert [step["id"] for step in json.loads(paths[0].read_bytes())["steps"]] == [
        "warmup",
        "concurrency@1",
        "concurrency@2",
    ]
    compared = here("bench", "compare", str(paths[0]), str(paths[0]))
    assert (compared.code, b"no difference" in compared.out) == (0, True)


@pytest.mark.tier3
@pytest.mark.parametrize("endpoint", ["responses", "messages"])
def test_other_endpoints_can_be_measured(mock: Mock, tmp_path: Path, endpoint: str) -> None:
    path = tmp_path / "bench.json"
    words = ["--endpoint", endpoint, "--concurrency", "1", *QUICK, "--report", str(path)]
    ran = run("bench", _url(mock), *words, "--assert", "error_rate<1%", cwd=tmp_path)
    assert ran.code == 0, ran.notes
    assert f"/v1, endpoint {endpoint}" in ran.out.decode()
    report = json.loads(path.read_bytes())
    assert (report["endpoint"], report["config"]["endpoint"]) == (endpoint, endpoint)
    assert [step["outcomes"].keys() for step in report["steps"]] == [{"ok"}, {"ok"}]


def test_an_unsupported_endpoint_is_a_usage_error(here: Run) -> None:
    ran = here("bench", "http://127.0.0.1:9/v1", "--endpoint", "completions")
    assert (ran.code, "chat" in ran.notes) == (2, True)


@pytest.mark.parametrize(("text", "code"), [("error_rate<1%", 0), ("token_rate>1000000000", 1), ("ttft.p99<9s", 1)])
def test_assertions_set_the_exit_code(mock: Mock, here: Run, text: str, code: int) -> None:
    ran = here("bench", _url(mock), "--concurrency", "1", *QUICK, "--assert", text)
    assert ran.code == code, ran.out.decode()


def test_an_interrupt_prints_the_report_so_far(mock: Mock, tmp_path: Path) -> None:
    words = ["bench", _url(mock), "--concurrency", "1", "--duration", "1h", "--warmup", "100ms", *QUICK[4:]]
    with Live(*words, cwd=tmp_path) as live:
        assert live.process.stderr is not None
        while b"warmup" not in (line := live.process.stderr.readline()):
            assert line, "it ended before its warm-up was over"
        live.process.send_signal(signal.SIGINT)
        ran = live.end()
    assert ran.code == 130
    assert b"concurrency@1" in ran.out
    assert b"Traceback" not in ran.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("URL -b fast", "welldone bench: argument --benchmark-kind/-b: 'fast' is not one of quick, sweep, throughput"),
        ("URL -b rate", "-b rate needs --rates"),
        ("URL -b sweep --rates 1", "--rates is for -b rate, not for -b sweep"),
        ("URL --rates 1 --concurrency 2", "--rates is for -b rate, --concurrency for -b concurrency: omit one"),
        (
            "URL --replay a --concurrency 2",
            "--concurrency is for -b concurrency, --replay for -b replay: omit one",
        ),
        ("URL -b throughput --arrivals poisson", "--arrivals is for -b rate and -b sweep, not for -b throughput"),
        ("URL --arrivals fast", "welldone bench: argument --arrivals: 'fast' is not one of constant, poisson, bursty"),
        ("URL --burstiness 2", "--burstiness is for --arrivals bursty"),
        ("URL --assert goodput>95%", "--assert 'goodput>95%' needs --goodput, which sets the limits of a good answer"),
        ("URL --duration 0s", "welldone bench: argument --duration/-d: '0s' is not a time from 0.001s to 24h"),
        ("URL --grace 25h", "welldone bench: argument --grace: '25h' is not a time from 0s to 24h"),
        ("URL --rates 0", "welldone bench: argument --rates/-r: '0' is not a number above 0"),
        ("URL --duration soon", "welldone bench: argument --duration/-d: 'soon' is not a time from 0.001s to 24h"),
        ("URL --max-vus 0", "welldone bench: argument --max-vus/-m: '0' is not a whole number from 1 to 10,000"),
        ("URL --concurrency 1,x", "welldone bench: argument --concurrency: 'x' is not a whole number"),
        ("URL --extra-meta x", "welldone bench: argument --extra-meta: 'x' is not a list such as engine=vllm,tp=2"),
        ("URL --report bench.pdf", "bench.pdf: a report file must end in one of .json, .csv, .html"),
        ("URL --url URL", "two URLs are given: omit --url"),
        (
            "http://me:secret@127.0.0.1/v1",
            "the URL holds a user name or password, which would end up in logs; use --api-key instead",
        ),
        ("URL --api-key env:NO_SUCH_VARIABLE", "--api-key names the environment variable NO_SUCH_VARIABLE"),
        ("URL --profile fast", "there is no profile 'fast'"),
        ("URL --modle x", "welldone bench: unknown option '--modle'"),
        ("compare right.txt right.txt", "right.txt"),
    ],
)
def test_a_usage_error_is_one_line_that_tells_what_to_do(here: Run, words: str, message: str) -> None:
    ran = here("bench", *words.replace("URL", "http://127.0.0.1:9/v1").split())
    assert (ran.code, ran.out) == (2, b"")
    assert ran.notes.startswith(message)
    assert ran.notes.count("\n") == 1
    assert "me:secret" not in ran.notes


def test_an_unreachable_server_is_one_line(here: Run) -> None:
    ran = here("bench", "http://127.0.0.1:9/v1")  # the port of `discard`, without a listener
    assert (ran.code, ran.out) == (3, b"")
    assert ran.notes.startswith("welldone bench: http://127.0.0.1:9/v1: no connection to the server")


# Files and the end of a run.


def test_an_unwritable_report_is_reported_before_the_run(here: Run, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for words, message in (
        (("--report", str(tmp_path / "none" / "a.json")), "cannot write"),
        (("--report", str(tmp_path / "a.pdf")), f"{tmp_path / 'a.pdf'}: a report file must end in one of"),
        (("--results-dir", str(file / "results")), "cannot create the folder"),
        (("--results-dir", str(file)), "cannot create the folder"),
    ):
        ran = here("bench", "http://127.0.0.1:9/v1", *words)
        assert (ran.code, ran.out, ran.notes.count("\n")) == (2, b"", 1)
        assert ran.notes.startswith(message)


@pytest.mark.tier3
def test_the_report_is_printed_even_if_a_file_cannot_be_written(mock: Mock, tmp_path: Path) -> None:
    """The folder is deleted during the run, which stands for a full disk."""
    gone, written = tmp_path / "gone", tmp_path / "written.json"
    gone.mkdir()
    words = [
        "bench",
        _url(mock),
        "--concurrency",
        "1",
        *QUICK,
        "--report",
        str(gone / "a.csv"),
        "--report",
        str(written),
    ]
    with Live(*words, cwd=tmp_path) as live:
        assert live.process.stderr is not None
        while b"warmup" not in (line := live.process.stderr.readline()):
            assert line, "it ended before its warm-up was over"
        gone.rmdir()
        ran = live.end()
    assert ran.code == 2
    assert b"concurrency@1" in ran.out
    assert json.loads(written.read_bytes())["is_complete"] is True
    assert f"cannot write {gone / 'a.csv'}: no such file or directory" in ran.notes


@pytest.mark.tier3
def test_a_closed_pipe_does_not_prevent_the_report_file(mock: Mock, tmp_path: Path) -> None:
    written = tmp_path / "written.json"
    with Live("bench", _url(mock), "--concurrency", "1", *QUICK, "--report", str(written), cwd=tmp_path) as live:
        assert live.process.stdout is not None
        live.process.stdout.close()
        assert live.process.wait() == 141
    assert json.loads(written.read_bytes())["is_complete"] is True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_silent_server_can_be_interrupted_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        port = server.getsockname()[1]
        with Live("bench", f"http://127.0.0.1:{port}/v1", "--model", "m", cwd=tmp_path) as live:
            asked, _ = server.accept()
            live.process.send_signal(number)
            ran = live.end()
            asked.close()
    assert (ran.code, ran.out) == (130, b"")
    assert b"Traceback" not in ran.err
