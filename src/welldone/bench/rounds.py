"""A step that was made in rounds, as one: the requests of all rounds one after the other, and the rates of each."""

from collections.abc import Sequence
from typing import TypedDict, Unpack

import msgspec

from welldone.bench.load import LoadGenerator
from welldone.bench.record import BenchRecord
from welldone.bench.report import ClientLoad, StepResult
from welldone.bench.settings import GoodputBound
from welldone.bench.stats import summarize_step


class StepSpec(TypedDict):
    """What is known of a step before it is made."""

    id: str
    target: str
    is_open: bool
    max_vus: int
    rate: float | None
    goodput: Sequence[GoodputBound]


def merge_rounds(loads: Sequence[LoadGenerator], **spec: Unpack[StepSpec]) -> StepResult:
    """What the rounds of a step came to, one after the other."""
    records: list[BenchRecord] = []
    seconds = 0.0
    for load in loads:
        records += load.records if not seconds else [shift_record(record, seconds) for record in load.records]
        seconds += load.seconds
    step = summarize_step(
        records,
        seconds=seconds,
        due=sum(load.counts.due for load in loads),
        skipped=sum(load.counts.skipped for load in loads),
        tokens_by=" and ".join(sorted({by for load in loads for by in load.tokens_by}, reverse=True)) or "chunks",
        client=_mean_client_load(loads),
        **spec,
    )
    return step if len(loads) == 1 else _with_round_rates([merge_rounds([load], **spec) for load in loads], step)


def _mean_client_load(loads: Sequence[LoadGenerator]) -> ClientLoad:
    owns = [load.client_load for load in loads]
    return ClientLoad(
        cpu=sum(own.cpu for own in owns) / len(owns),
        late_starts=sum(own.late_starts for own in owns),
        max_delay_s=max(own.max_delay_s for own in owns),
        is_bottleneck=any(own.is_bottleneck for own in owns),
    )


def _with_round_rates(rounds: Sequence[StepResult], whole: StepResult) -> StepResult:
    """What came after the end of a round belongs to no round, though it lies in the time of the next."""
    seconds = whole.seconds or 1.0
    return msgspec.structs.replace(
        whole,
        request_rate=sum(one.request_rate * one.seconds for one in rounds) / seconds,
        token_rate=sum(one.token_rate * one.seconds for one in rounds) / seconds,
    )


def shift_record(record: BenchRecord, seconds: float) -> BenchRecord:
    """The same record, in a step that began so much earlier."""

    def later(at: float | None) -> float | None:
        return None if at is None else at + seconds

    return msgspec.structs.replace(
        record,
        due_s=record.due_s + seconds,
        sent_s=record.sent_s + seconds,
        head_s=later(record.head_s),
        role_s=later(record.role_s),
        reasoning_s=later(record.reasoning_s),
        content_s=later(record.content_s),
        tool_s=later(record.tool_s),
        times=type(record.times)("d", [at + seconds for at in record.times]),
        ended_s=record.ended_s + seconds,
    )
