"""What a program sees of an upstream's faults that uses OpenAI's own client.

That client takes a stream which just ends for a whole answer. So it depends on the gateway whether its user is told.
"""

import asyncio
from collections import Counter

import msgspec
import openai
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

from faults.asking import side_by_side
from faults.case import Case, Figure, Outcome, Stage
from faults.matrix import EXPECTED
from faults.statuses import AT_ONCE, FORMS, TEXT, Behind, behind

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": TEXT}]
ANSWER, SILENT = "an answer", "a silent end"


class Given(msgspec.Struct, frozen=True):
    """What a program got: an answer, a kind of exception, or an end that looks like an answer's and is none."""

    name: str
    is_stream: bool
    kind: str

    @property
    def is_right(self) -> bool:
        """Whether it got an answer exactly where there is one."""
        is_answered = EXPECTED[self.name].to(is_stream=self.is_stream) == "whole"
        return self.kind == ANSWER if is_answered else self.kind not in (ANSWER, SILENT)

    def __str__(self) -> str:
        return f"{self.name}, {'streamed' if self.is_stream else 'whole'}: {self.kind}"


def use(stage: Stage) -> Outcome:
    """Every fault, streamed and whole."""
    with behind(stage) as here:
        given = asyncio.run(_use_all(stage, here))
    kinds = Counter(one.kind for one in given)
    wrong = [str(one) for one in given if not one.is_right]
    return Outcome(
        len(given),
        f"openai {openai.__version__} gave its user " + ", ".join(f"{kind} ({kinds[kind]})" for kind in sorted(kinds)),
        (
            Figure("silent ends", kinds[SILENT], most=0),
            Figure("answers and errors in each other's place", len(wrong), most=0),
        ),
        tuple(wrong),
    )


async def _use_all(stage: Stage, here: Behind) -> list[Given]:
    forms = FORMS[:1] if stage.is_short else FORMS  # only in a stream can an end be silent
    asked = [(name, is_stream) for name in EXPECTED for is_stream in forms] * stage.times(5, 1)
    async with AsyncOpenAI(api_key=here.server.key, base_url=here.server.url, max_retries=0) as client:

        async def use_one(one: tuple[str, bool]) -> Given:
            name, is_stream = one
            return Given(name, is_stream, await _use(client, name, is_stream=is_stream))

        return await side_by_side(stage, asked, AT_ONCE, use_one)


async def _use(client: AsyncOpenAI, name: str, *, is_stream: bool) -> str:
    try:
        said = await (_streamed(client, name) if is_stream else _whole(client, name))
    except openai.OpenAIError as error:
        return type(error).__name__
    return ANSWER if said == TEXT else SILENT


async def _streamed(client: AsyncOpenAI, name: str) -> str:
    said = ""
    async with await client.chat.completions.create(model=name, messages=MESSAGES, stream=True) as stream:
        async for chunk in stream:
            said += "".join(choice.delta.content or "" for choice in chunk.choices)
    return said


async def _whole(client: AsyncOpenAI, name: str) -> str | None:
    reply = await client.chat.completions.create(model=name, messages=MESSAGES)
    return reply.choices[0].message.content


CASES = (Case("error-through", "the same faults, heard by OpenAI's client for Python", use),)
