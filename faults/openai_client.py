"""Upstream faults as seen by a program with OpenAI's Python client.

That client takes a stream that just ends for a complete answer, so its user depends on the gateway to see the fault.
"""

import asyncio
from collections import Counter

import msgspec
import openai
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import run_concurrently
from faults.matrix import EXPECTED
from faults.statuses import AT_ONCE, FORMS, TEXT, Setup, gateway_setup

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": TEXT}]
ANSWER, SILENT = "an answer", "a silent end"


class ClientResult(msgspec.Struct, frozen=True):
    """Result for the program: an answer, an exception type, or a silent truncation."""

    name: str
    is_stream: bool
    kind: str

    @property
    def is_right(self) -> bool:
        """Whether an answer is returned exactly if the upstream sent one."""
        is_answered = EXPECTED[self.name].for_form(is_stream=self.is_stream) == "whole"
        return self.kind == ANSWER if is_answered else self.kind not in (ANSWER, SILENT)

    def __str__(self) -> str:
        return f"{self.name}, {'streamed' if self.is_stream else 'whole'}: {self.kind}"


def use(context: CaseContext) -> Outcome:
    """Run every fault, streamed and not streamed."""
    with gateway_setup(context) as setup:
        results = asyncio.run(_use_all(context, setup))
    kinds = Counter(one.kind for one in results)
    wrong = [str(one) for one in results if not one.is_right]
    return Outcome(
        len(results),
        f"openai {openai.__version__} raised or returned "
        + ", ".join(f"{kind} ({kinds[kind]})" for kind in sorted(kinds)),
        (
            Figure("silent truncations", kinds[SILENT], most=0),
            Figure("responses and errors swapped", len(wrong), most=0),
        ),
        tuple(wrong),
    )


async def _use_all(context: CaseContext, setup: Setup) -> list[ClientResult]:
    forms = FORMS[:1] if context.is_short else FORMS  # only a stream can end silently
    requests = [(name, is_stream) for name in EXPECTED for is_stream in forms] * context.times(5, 1)
    async with AsyncOpenAI(api_key=setup.server.key, base_url=setup.server.url, max_retries=0) as client:

        async def use_one(one: tuple[str, bool]) -> ClientResult:
            name, is_stream = one
            return ClientResult(name, is_stream, await _use(client, name, is_stream=is_stream))

        return await run_concurrently(context, requests, AT_ONCE, use_one)


async def _use(client: AsyncOpenAI, name: str, *, is_stream: bool) -> str:
    try:
        content = await (_streamed(client, name) if is_stream else _whole(client, name))
    except openai.OpenAIError as error:
        return type(error).__name__
    return ANSWER if content == TEXT else SILENT


async def _streamed(client: AsyncOpenAI, name: str) -> str:
    content = ""
    async with await client.chat.completions.create(model=name, messages=MESSAGES, stream=True) as stream:
        async for chunk in stream:
            content += "".join(choice.delta.content or "" for choice in chunk.choices)
    return content


async def _whole(client: AsyncOpenAI, name: str) -> str | None:
    reply = await client.chat.completions.create(model=name, messages=MESSAGES)
    return reply.choices[0].message.content


CASES = (Case("error-through", "the same faults, seen by OpenAI's Python client", use),)
