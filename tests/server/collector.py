"""A stand-in OpenTelemetry collector: OTLP over HTTP, with the spans that it has received."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

LIMIT_S = 120.0


class ReceivedSpan(msgspec.Struct):
    """A span as it was exported."""

    name: str
    kind: int
    """2: server, 3: client."""
    trace_id: str
    span_id: str
    parent_id: str
    trace_state: str
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    is_error: bool
    resource: dict[str, Any]

    def events_of(self, name: str) -> list[dict[str, Any]]:
        """The attributes of the events with this name."""
        return [attributes for event, attributes in self.events if event == name]


class Collector:
    """Receives spans until it is closed."""

    def __init__(self, status: int = 200) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self._changed = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with collector._changed:
                    if self.path == "/v1/traces":
                        collector.bodies.append(body)
                        collector.headers.append({name.lower(): value for name, value in self.headers.items()})
                    collector._changed.notify_all()
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """The value of `OTEL_EXPORTER_OTLP_ENDPOINT`."""
        return f"http://127.0.0.1:{self.server.server_port}"

    @property
    def spans(self) -> list[ReceivedSpan]:
        """All spans so far, in the order of their start."""
        found = []
        for body in self.bodies:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                about = _attributes(resource.resource.attributes)
                for scope in resource.scope_spans:
                    found += [(span.start_time_unix_nano, _read(span, about)) for span in scope.spans]
        return [span for _, span in sorted(found, key=lambda pair: pair[0])]

    def wait_for(self, count: int) -> list[ReceivedSpan]:
        """Wait until there are so many spans."""
        deadline = time.monotonic() + LIMIT_S
        with self._changed:
            while len(self.spans) < count:
                assert self._changed.wait(deadline - time.monotonic()), self.spans
        return self.spans


@contextmanager
def collecting(status: int = 200) -> Iterator[Collector]:
    """Run a collector, and stop it when the block ends."""
    collector = Collector(status)
    thread = threading.Thread(target=collector.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.server.shutdown()
        collector.server.server_close()
        thread.join(LIMIT_S)


def _read(span: Any, resource: dict[str, Any]) -> ReceivedSpan:  # noqa: ANN401 - protobuf's Span
    return ReceivedSpan(
        span.name,
        span.kind,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.trace_state,
        _attributes(span.attributes),
        [(event.name, _attributes(event.attributes)) for event in span.events],
        span.status.code == 2,
        resource,
    )


def _attributes(pairs: Any) -> dict[str, Any]:  # noqa: ANN401 - protobuf's KeyValue
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:  # noqa: ANN401 - any value
    kind = value.WhichOneof("value")
    assert kind is not None
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind)
