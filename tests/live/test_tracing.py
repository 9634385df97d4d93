"""Tracing of `welldone serve` with the OpenAI SDK, the real engine, two hops, several workers, and a drain."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.live.test_gateway_workers import two_workers
from tests.server.collector import Collector, collecting
from tests.support.server import Running, serving
from tests.support.upstream import chat_text, eventually, gateway, upstream

pytestmark = pytest.mark.tier2
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SLOW_EXPORT = {"OTEL_BSP_SCHEDULE_DELAY": "600000"}
"""Only a full batch or the end of the server exports spans."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def environment(collector: Collector, name: str) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": name, **SLOW_EXPORT}


def ask(server: Running) -> tuple[str, str | None]:
    """The text and the finish reason that the OpenAI SDK reads from a stream."""
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    with openai.OpenAI(base_url=server.url, api_key=server.key, max_retries=0) as client:
        stream = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "Say hello."}],
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers=headers,
        )
        chunks = list(stream)
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    return "".join(one.delta.content or "" for one in choices), choices[-1].finish_reason


def test_a_trace_goes_from_the_client_through_a_gateway_to_an_engine(
    tmp_path: Path, collector: Collector, default_model: Path
) -> None:
    options = ["-m", str(default_model), "--alias", "smollm2", "-t", "1", "-c", "512"]
    with (
        serving(options, model="smollm2", key=None, environment=environment(collector, "engine")) as engine,
        gateway(tmp_path, engine.url, environment=environment(collector, "gate")) as front,
    ):
        text, finish = ask(front)
        front.log.wait(f"trace_id={TRACE}")
        engine.log.wait(f"trace_id={TRACE}")
    assert text
    spans = [span for span in collector.spans if span.trace_id == TRACE]  # the others are of the gateway's probes
    assert [span.resource["service.name"] for span in spans] == ["gate", "gate", "engine", "engine"]
    assert [span.parent_id for span in spans] == [SPAN, *(span.span_id for span in spans[:3])]
    request, _, hop, _ = spans
    for span in (request, hop):
        assert span.attributes["gen_ai.response.finish_reasons"] == [finish]
        assert 0 < span.attributes["gen_ai.usage.output_tokens"] <= 8
        assert span.attributes["gen_ai.usage.input_tokens"] > 0
        assert span.attributes["gen_ai.response.time_to_first_chunk"] > 0
        assert not span.is_error
    assert text.encode() not in b"".join(collector.bodies)


def test_each_worker_exports_its_spans_when_it_is_stopped(tmp_path: Path, collector: Collector) -> None:
    with upstream() as backend, two_workers(tmp_path, backend, environment=environment(collector, "gate")) as server:
        lines: set[str] = set()

        def have_both_answered() -> bool:
            chat_text(server, stream=True)
            server.log.wait("trace_id=")
            lines.update(line.partition("worker=")[2][:1] for line in server.log.all if " request worker=" in line)
            return lines >= {"1", "2"}

        eventually(have_both_answered)
        assert collector.bodies == []
        assert server.end() == 0
        answered = sum(" request worker=" in line and "trace_id=" in line for line in server.log.all)
    requests = [span for span in collector.spans if not span.parent_id]
    assert len(requests) == answered
    assert len({span.resource["service.instance.id"] for span in requests}) == 2


def test_a_required_tracer_without_a_usable_setting_ends_the_start_with_one_line(tmp_path: Path) -> None:
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with pytest.raises(AssertionError) as caught, serving(["--tracing", "on"], folder=tmp_path, environment=variables):
        pass
    (note,) = caught.value.__notes__
    assert "--tracing on: OTEL_EXPORTER_OTLP_PROTOCOL should be http/protobuf" in note
