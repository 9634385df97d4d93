"""Measure which clients break at which form of a violation, and write the results into the rule catalogue.

    python -m tests.clients.evidence [RULE...]

Each malformed stream of the matrix, and each wrong example of a rule's page, is replayed to every client of its
endpoint, and then a right reply: the same repaired, or the page's right example if repair leaves the violation. A
client breaks if it returns something else than for the right reply. Claims that were read in a client's source stay.
"""

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tests.clients import api_clients, matrix_clients
from tests.clients.client import ROOT, Client, Program
from tests.clients.programs.job import Job, Result
from tests.clients.replay_server import replaying
from tests.matrix import repaired_cases
from tests.matrix.cases import CASES, request
from tests.matrix.expected_rules import EXPECTED_RULES
from tests.oracle import node_client
from tests.rules.pages import PAGES, read_page
from welldone.core.catalog import FAMILIES
from welldone.core.envelope import Endpoint
from welldone.mock.script import JSON_HEADERS, MockChunk, MockReply
from welldone.rules.judge import judge
from welldone.rules.rule_pages import RuleExample
from welldone.rules.trace import Trace
from welldone.rules.view.view import ReplyKind, TraceView
from welldone.stream.pipeline import StreamPipeline, make_pipeline

CATALOG = ROOT / "src" / "welldone" / "core" / "catalog"
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
REQUEST_FIELDS = ("stream", "stream_options", "tools", "tool_choice", "n")
SHOWN_CHARACTERS = 60
BARE = {"openai-python", "openai-node", "anthropic-sdk-python", "anthropic-sdk-typescript"}
"""Clients that hand on what they read, without a helper that builds the answer."""
INTERNAL_ERRORS = {"AssertionError", "AttributeError", "IndexError", "KeyError", "TypeError"}
UNSEEN = {
    *("delta-role-once", "delta-role-assistant", "tool-id-once", "tool-id-stable", "tool-one-at-a-time", "sse-no-bom"),
    *("enc-no-lone-surrogate", "env-placeholder-chunk", "use-final-chunk", "use-not-zero"),
    *("env-fingerprint", "ext-audio", "ext-number-fields", "ext-logprobs-align", "end-done-last", "gem-stream-form"),
    *("gem-role", "msg-start-first", "msg-block-sequential", "msg-block-stop", "msg-tool-ids", "ns-content-type-json"),
    *("end-last-event-terminated", "resp-delta-equals-done"),
}
"""Rules with effects on what the programs do not return: roles, ids, the model, events, an estimated usage. Their
claims stay as they were measured."""
BREAKING = ("raises", "loses", "returns the text", "returns the calls", "takes a failed")
"""Effects of a form that breaks clients; another finish reason or usage may be no more than handed on."""
FAILURES = {"fin-always-sent", "tool-finish-follows", "resp-terminal-once", "resp-error", "live-empty-generation"}
"""Rules, beside the families `err` and `end`, about replies of a server that failed."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A malformed reply, and the same repaired."""

    name: str
    rule: str
    trace: Trace
    repaired: bytes
    parameters: dict[str, Any]
    is_stream: bool = True


@dataclass(frozen=True, kw_only=True)
class MeasuredClient:
    """A client as the catalogue names it."""

    name: str
    package: str
    """Name of the environment and of the package that has the version."""
    program: Program
    endpoints: tuple[str, ...]
    mode: str = "whole"
    reader: matrix_clients.MatrixClient | None = None

    @property
    def version(self) -> str:
        """The pinned version of the package."""
        home, _, name = self.package.partition("/")
        if home == "node":
            package = json.loads((node_client.HOME / "package.json").read_text("utf-8"))
            return str(package["dependencies"][name])
        lock = (ROOT / "requirements" / f"{home}.txt").read_text("utf-8")
        pinned = re.search(rf"^{re.escape(name)}(?:\[\S+\])?==(\S+)", lock, re.MULTILINE)
        assert pinned is not None, name
        return pinned[1]

    def job(self, sample: Sample, model: str, url: str) -> Job:
        """The job that reads one reply."""
        scenario = "read" if sample.trace.endpoint in ("chat", "completions") else "answer"
        return Job(
            scenario=scenario,
            base_url=url,
            model=model,
            key="none",
            endpoint=sample.trace.endpoint,
            mode=self.mode,
            parameters=sample.parameters,
        )

    def can_read(self, sample: Sample) -> bool:
        """Whether the client reads such a reply."""
        if sample.trace.endpoint not in self.endpoints:
            return False
        if sample.trace.endpoint not in ("chat", "completions"):
            return sample.is_stream == (self.mode != "whole")
        assert self.reader is not None
        return (self.reader.has_buffered or sample.is_stream) and (
            (self.reader.has_tools or "tools" not in sample.parameters)
            and (self.reader.has_choices or sample.parameters.get("n", 1) == 1)
        )


_READERS = {reader.title: reader for reader in matrix_clients.MATRIX_CLIENTS}
_TITLES = (
    ("openai-python", "clients/openai", "openai"),
    ("openai-python .stream()", "clients/openai", "openai `.stream()`"),
    ("openai-node", "node/openai", "openai-node"),
    ("openai-node .stream()", "node/openai", "openai-node `.stream()`"),
    ("AI SDK openai-compatible", "node/@ai-sdk/openai-compatible", "AI SDK"),
    ("AI SDK openai", "node/@ai-sdk/openai", "AI SDK"),
    ("LangChain", "clients/langchain-openai", "LangChain"),
    ("pydantic-ai", "clients/pydantic-ai-slim", "Pydantic AI"),
    ("litellm", "peers/litellm", "LiteLLM"),
)
_API_NAMES = {
    api_clients.OPENAI_PYTHON: ("openai-python", "clients/openai", "responses"),
    api_clients.OPENAI_NODE: ("openai-node", "node/openai", "responses"),
    api_clients.ANTHROPIC_PYTHON: ("anthropic-sdk-python", "clients/anthropic", "messages"),
    api_clients.ANTHROPIC_NODE: ("anthropic-sdk-typescript", "node/@anthropic-ai/sdk", "messages"),
    api_clients.GOOGLE_PYTHON: ("google-genai-python", "clients/google-genai", "gemini"),
    api_clients.GOOGLE_NODE: ("google-genai-js", "node/@google/genai", "gemini"),
}


def clients() -> Iterator[MeasuredClient]:
    """Every client that runs here, once for each way to read a reply."""
    for name, package, title in _TITLES:
        reader = _READERS[title]
        endpoints = ("chat", "completions") if reader.has_completions else ("chat",)
        mode = "openai" if name == "AI SDK openai" else "whole"
        yield MeasuredClient(
            name=name, package=package, program=reader.program, endpoints=endpoints, mode=mode, reader=reader
        )
    for program, (name, package, endpoint) in _API_NAMES.items():
        for mode, suffix in (("whole", ""), ("stream", ""), ("helper", " .stream()")):
            if mode != "helper" or endpoint != "gemini":
                yield MeasuredClient(
                    name=name + suffix, package=package, program=program, endpoints=(endpoint,), mode=mode
                )
    for name, package, endpoint in (
        ("AI SDK openai", "node/@ai-sdk/openai", "responses"),
        ("AI SDK anthropic", "node/@ai-sdk/anthropic", "messages"),
    ):
        for mode in ("whole", "stream"):
            yield MeasuredClient(
                name=name, package=package, program=api_clients.AI_SDK, endpoints=(endpoint,), mode=mode
            )


def samples() -> Iterator[Sample]:
    """The malformed streams of the matrix, then the wrong examples of the pages."""
    for name, rule in EXPECTED_RULES.items():
        parameters = {key: value for key, value in request(name).items() if key in REQUEST_FIELDS}
        trace = Trace(body=CASES[name], endpoint="chat", request=request(name), status=200)
        yield Sample(
            name=name,
            rule=rule,
            trace=trace,
            repaired=repaired_cases.fix(name, [CASES[name]]),
            parameters=parameters,
        )
    for path in sorted(PAGES.glob("*-*.md")):
        examples = [example for example in read_page(path) if _is_body(example)]
        for example in examples:
            if not example.is_correct and (sample := _sample(example, examples)) is not None:
                yield sample


def _is_body(example: RuleExample) -> bool:
    """Whether the example is a stream or a whole reply with status 200, without a head of its own."""
    kind = TraceView(example.trace).reply_kind
    is_head = example.rule.startswith("http-")  # the head and the connection are not replayed
    return not is_head and example.trace.status in (None, 200) and kind in (ReplyKind.STREAM, ReplyKind.WHOLE)


def _sample(example: RuleExample, examples: list[RuleExample]) -> Sample | None:
    trace = example.trace
    is_stream = TraceView(trace).reply_kind is ReplyKind.STREAM
    asked = trace.request or {}
    parameters = {key: asked[key] for key in REQUEST_FIELDS if key in asked}
    if is_stream:
        wants_usage = trace.wants_usage is not False
        parameters |= USAGE if wants_usage else {"stream": True}
    repaired = _repair(trace, is_stream=is_stream)
    if judge(Trace(body=repaired, endpoint=trace.endpoint, request=trace.request), {example.rule}).counts:
        kind = TraceView(trace).reply_kind
        alike = (one.trace for one in examples if one.is_correct and one.trace.endpoint == trace.endpoint)
        right = next((one.body for one in alike if TraceView(one).reply_kind is kind), None)
        if right is None:
            return None
        repaired = right
    return Sample(
        name=example.name.replace(" block ", "-"),
        rule=example.rule,
        trace=trace,
        repaired=repaired,
        parameters=parameters,
        is_stream=is_stream,
    )


def _repair(trace: Trace, *, is_stream: bool) -> bytes:
    pipe = make_pipeline(Endpoint(trace.endpoint), trace.request, id_stem="1", created=1700000000, is_stream=is_stream)
    is_fed = isinstance(pipe, StreamPipeline) or is_stream
    sent = (pipe.feed(trace.body) if is_fed else pipe.feed_reply(trace.body)) or b""
    sent += pipe.close() or b""
    return sent if isinstance(pipe, StreamPipeline) or is_stream else pipe.body()


Effects: TypeAlias = dict[tuple[str, str], str | None]
"""What breaks, by client and sample; empty where the client works, None where that cannot be told."""


def measure(measured: list[MeasuredClient], replies: list[Sample]) -> Effects:
    """Replay all samples to all clients."""
    bodies = {f"{sample.name}-{what}": _reply(sample, body) for sample in replies for what, body in _bodies(sample)}
    with replaying(bodies) as url, ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def run(client: MeasuredClient) -> Effects:
            home = folder / f"{client.name}-{client.mode}".replace("/", "-").replace(" ", "-")
            home.mkdir(exist_ok=True)
            found: Effects = {}
            with Client(client.program.command(), home) as process:
                for sample in replies:
                    if client.can_read(sample):
                        wrong, right = (
                            process.run_job(client.job(sample, f"{sample.name}-{what}", url))
                            for what, _ in _bodies(sample)
                        )
                        found[client.name, sample.name] = difference(client, sample, wrong, right)
            return found

        results: Effects = {}
        for found in pool.map(run, measured):
            results |= found
    return results


def _bodies(sample: Sample) -> tuple[tuple[str, bytes], tuple[str, bytes]]:
    return ("wrong", sample.trace.body), ("right", sample.repaired)


def _reply(sample: Sample, body: bytes) -> MockReply:
    chunks = (MockChunk(base64=body),) if body else ()
    return MockReply(chunks) if sample.is_stream else MockReply(chunks, 200, JSON_HEADERS, framing="length")


def difference(client: MeasuredClient, sample: Sample, wrong: Result, right: Result) -> str | None:
    """What the client does with a malformed reply, in place of what it does with a right one."""
    if wrong == right and not right["error"]:
        return ""
    if right["error"]:
        is_failure = sample.rule in FAILURES or sample.rule.startswith(("err-", "end-"))
        return "takes a failed answer for a whole one" if is_failure and not wrong["error"] else None
    if not wrong["error"]:
        found = _differences(_fields(wrong), _fields(right))
        # litellm estimates usage from the text.
        return "; ".join(text for text in found if client.name != "litellm" or "usage" not in text)
    name, _, message = wrong["error"].partition(": ")
    # A client without helpers hands on what it got; these errors are those of the program that reads it.
    if client.name in BARE and name in INTERNAL_ERRORS:
        return None
    reason = re.split(r"[:.]? (?:Value|Text|Error)\b|[{\[]|litellm\.", _shorten(message))[0].strip(" :.,")
    return f"raises {name.lstrip('_')} '{reason}'" if reason else f"raises {name.lstrip('_')}"


def _fields(result: Result) -> dict[str, Any]:
    """Text, tool calls, finish reason and usage of the first choice."""
    if "choices" not in result:
        text = "".join(map(str, result["pieces"]))
        rest = {name: result[name] for name in ("thoughts", "calls", "finish", "usage")}
        return {"text": text, **rest, "thoughts": "".join(map(str, rest["thoughts"]))}
    texts, calls, finishes = zip(*result["choices"], strict=True) if result["choices"] else ((), (), ())
    return {
        "text": "|".join(map(str, texts)),
        "calls": [call for choice in calls for call in choice],
        "finish": "|".join(str(finish) for finish in finishes),
        "usage": result["usage"],
    }


def _differences(wrong: dict[str, Any], right: dict[str, Any]) -> Iterator[str]:
    nouns = {"text": "text", "thoughts": "reasoning", "calls": "calls", "finish": "finish reason", "usage": "usage"}
    for name, noun in nouns.items():
        shown, sent = wrong.get(name), right.get(name)
        # The right reply has no usage where the counts were unreadable.
        if shown == sent or (name == "usage" and (sent is None or None in sent)):
            continue
        if shown in ("", [], None, "None"):
            yield f"loses the {noun}"
        else:
            yield f"returns the {noun} {_shorten(json.dumps(shown, ensure_ascii=False))}"


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else line[:SHOWN_CHARACTERS].rstrip() + "…"


def update(rows: list[dict[str, Any]], replies: list[Sample], effects: Effects, versions: dict[str, str]) -> None:
    """Write what was measured into the rows of a catalogue file."""
    for row in rows:
        measured: dict[str, dict[str, str]] = {}
        for sample in (sample for sample in replies if sample.rule == row["id"]):
            names = {finding.form or "any" for finding in judge(sample.trace, {sample.rule}).findings}
            if len(names) == 1:
                for (client, name), effect in effects.items():
                    if name == sample.name and effect is not None:
                        by_client = measured.setdefault(next(iter(names)), {})
                        by_client[client] = by_client.get(client) or effect
        for name, by_client in measured.items():
            form = row["forms"][name]
            claims = {claim["client"]: claim for claim in form.pop("evidence", [])}
            for client, effect in by_client.items():
                if effect:
                    old = claims.get(client, {"effect": effect})
                    claims[client] = {"client": client, "effect": old["effect"], "measured": versions[client]}
                elif "measured" in claims.get(client, {}) and row["id"] not in UNSEEN:
                    del claims[client]
            if claims:
                form["evidence"] = list(claims.values())
        for form in row["forms"].values():
            if "evidence" not in form:
                form["severity"] = form["severity"].replace("breaks", "tolerated")
            elif form.get("kind", row["kind"]) != "advice":
                is_broken = any(claim["effect"].startswith(BREAKING) for claim in form["evidence"])
                form["severity"] = "breaks" if is_broken else form["severity"]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a catalogue file, with a line for each piece of evidence."""
    text = json.dumps(rows, ensure_ascii=False, indent=2)
    text = re.sub(r'\[\s+("\w+"(?:,\s+"\w+")*)\s+\]', _on_one_line, text)
    text = re.sub(r'\{\s+("client": (?:"(?:[^"\\]|\\.)*"|[^"{}\[\]])*?)\s+\}', _on_one_line, text)
    text = re.sub(r'\{\s+("severity": "\w+"(?:,\s+"kind": "\w+")?)\s+\}', _on_one_line, text)
    path.write_text(text + "\n", "utf-8")


def _on_one_line(match: re.Match[str]) -> str:
    return match[0][0] + re.sub(r",\n\s+", ", ", match[1]) + match[0][-1]


def main(rules: list[str]) -> None:
    """Measure the samples of these rules, or of all, and update the catalogue."""
    replies = [sample for sample in samples() if not rules or sample.rule in rules]
    measured = list(clients())
    effects = measure(measured, replies)
    versions = {client.name: client.version for client in measured}
    for path in sorted(CATALOG.glob("*.json")):
        if path.stem in FAMILIES:
            rows = json.loads(path.read_text("utf-8"))
            update(rows, replies, effects, versions)
            write(path, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
