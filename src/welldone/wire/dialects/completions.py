"""The dialect of /v1/completions: events as its stream, and as its whole reply."""

from typing import ClassVar

import msgspec

from welldone.wire import automaton
from welldone.wire.asked import RequestFacts
from welldone.wire.automaton import ChoiceTransitions
from welldone.wire.collect import CollectedReply
from welldone.wire.dialects.chat import completion_object
from welldone.wire.dialects.dialect import UsageSource, Dialect
from welldone.wire.dialects.stream import ContentEvent, ChunkWriter, error_and_done, escape_line_breaks
from welldone.wire.events import Failure, Finish, Json, Text
from welldone.wire.head import Endpoint, Envelope


class CompletionsWriter(ChunkWriter):
    """A right stream of completions. The choices of a list of prompts may come in any order."""

    ENDPOINT: ClassVar[Endpoint] = Endpoint.COMPLETIONS
    TABLE: ClassVar[ChoiceTransitions] = automaton.COMPLETIONS_TRANSITIONS
    IS_ORDERED: ClassVar[bool] = False

    def _content_fields(self, event: ContentEvent) -> Json | None:
        # The automaton of completions lets nothing else pass.
        return {"text": event.text} if isinstance(event, Text) else None

    def _choice_fields(self, content: Json, fields: Json) -> Json:
        return {"text": content.get("text", ""), **fields}

    def _finish_reason(self, event: Finish) -> str:
        return event.reason


class CompletionsDialect(Dialect):
    """Answers as /v1/completions gives them."""

    def __init__(self, facts: RequestFacts) -> None:
        self._facts = facts

    def make_writer(self, envelope: Envelope, usage_source: UsageSource) -> CompletionsWriter:
        """The writer of a stream."""
        return CompletionsWriter(envelope, usage_is_null=self._facts.include_usage is True)

    def encode_reply(self, envelope: Envelope, reply: CollectedReply) -> bytes:
        """The reply to a request that did not ask for a stream."""
        return encode_completions_reply(envelope, reply)

    def final_error_bytes(self, failure: Failure) -> bytes:
        """An error event, and the end."""
        return error_and_done(failure)


def encode_completions_reply(envelope: Envelope, reply: CollectedReply) -> bytes:
    """The reply to a request that did not ask for a stream."""
    choices = []
    for index, answer in sorted(reply.choices.items()):
        choice = {
            "index": index,
            "text": answer.text,
            "logprobs": answer.logprobs,
            "finish_reason": answer.finish_reason,
        }
        choices.append(choice | answer.delta_fields | answer.choice_fields)
    return escape_line_breaks(msgspec.json.encode(completion_object(envelope, Endpoint.COMPLETIONS, choices, reply)))
