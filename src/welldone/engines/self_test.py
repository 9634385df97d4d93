"""Self-test of engines: each loads the same model and answers; their speeds on one core are measured alternately."""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import msgspec

from welldone.config.model import ModelSettings
from welldone.engines.builds import EngineSpeed
from welldone.engines.errors import EngineError
from welldone.engines.models.store import models_folder
from welldone.engines.plan import make_plan
from welldone.engines.process import EngineProcess
from welldone.engines.supervisor import make_socket_folder
from welldone.http.address import Address
from welldone.http.client import fetch
from welldone.http.connect import HttpClientError

ROUNDS = 3
"""The fastest round counts: other programs only make one slower."""
PROMPT = "The quick brown fox jumps over the lazy dog, and then it rests. "
PROMPT_TOKENS, ANSWER_TOKENS = 200, 48
"""Two seconds on a slow machine with the built-in model."""
THREADS = 1
"""Several threads wait for each other, which takes most of the time on a busy machine; one core shows what its
instructions gain."""
_START_TIMEOUT_S, _ANSWER_TIMEOUT_S = 120.0, 120.0  # the built-in model takes seconds


class _Timings(msgspec.Struct):
    predicted_n: int
    prompt_per_second: float
    predicted_per_second: float


class _Completion(msgspec.Struct):
    content: str
    timings: _Timings


class _Tokens(msgspec.Struct):
    tokens: list[int]


_Reply = TypeVar("_Reply", _Completion, _Tokens)


async def measure_engines(
    engines: Sequence[Path], model: Path, environment: Mapping[str, str], *, rounds: int = ROUNDS
) -> list[EngineSpeed]:
    """Return the speed of each engine, given as in the setting `engine`. Raises `EngineError` if one does not work."""
    settings = [
        ModelSettings(name="self-test", file=model, engine=engine, ctx_size=1024, threads=THREADS) for engine in engines
    ]
    return await measure_settings(settings, environment, rounds=rounds)


async def measure_settings(
    candidates: Sequence[ModelSettings],
    environment: Mapping[str, str],
    *,
    rounds: int = ROUNDS,
    prompt_tokens: int = PROMPT_TOKENS,
) -> list[EngineSpeed]:
    """Return the speed of models with these settings and environments, which answer alternately.

    Raises `EngineError`.
    """
    folder = await asyncio.to_thread(make_socket_folder, environment)
    try:
        async with AsyncExitStack() as stack:
            addresses = []
            for settings in candidates:
                own = {**environment, **settings.environment}
                plan = make_plan(settings, models_folder=models_folder(own), socket_folder=folder, environment=own)
                process = await EngineProcess.start(plan, timeout_s=_START_TIMEOUT_S)
                stack.push_async_callback(process.stop, 0)
                addresses.append(plan.address)
            speeds = [
                [await _measure(address, number, prompt_tokens) for address in addresses] for number in range(rounds)
            ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [
        EngineSpeed(prompt=max(speed.prompt for speed in own), decode=max(speed.decode for speed in own))
        for own in zip(*speeds, strict=True)
    ]


async def _measure(address: Address, number: int, prompt_tokens: int) -> EngineSpeed:
    text = f"{number}. {PROMPT * prompt_tokens}"  # more than enough in any vocabulary
    tokens = (await _ask(address, "/tokenize", {"content": text}, _Tokens)).tokens[:prompt_tokens]
    body = {
        "prompt": tokens,
        "n_predict": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
    }
    completion = await _ask(address, "/completion", body, _Completion)
    if not completion.content or completion.timings.predicted_n != ANSWER_TOKENS:
        raise EngineError(f"answered {completion.timings.predicted_n} tokens instead of {ANSWER_TOKENS}")
    return EngineSpeed(completion.timings.prompt_per_second, completion.timings.predicted_per_second)


async def _ask(address: Address, path: str, body: dict[str, object], reply_type: type[_Reply]) -> _Reply:
    try:
        reply = await fetch(address, "POST", path, body=msgspec.json.encode(body), timeout_s=_ANSWER_TIMEOUT_S)
        return msgspec.json.decode(reply.body, type=reply_type)
    except (HttpClientError, msgspec.MsgspecError) as error:
        raise EngineError(f"does not answer {path}") from error
