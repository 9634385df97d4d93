"""The dialect of /v1/completions: events as its stream, and as its whole reply."""

from typing import ClassVar

import msgspec

from welldone.wire import automaton
from welldone.wire.asked import Asked
from welldone.wire.automaton import ChoiceTable
from welldone.wire.collect import Reply
from welldone.wire.dialects.chat import whole_object
from welldone.wire.dialects.dialect import Counted, Dialect
from welldone.wire.dialects.stream import Spoken, StreamWriter, error_end, escape
from welldone.wire.events import Failure, Finish, Json, Text
from welldone.wire.head import Endpoint, Head


class CompletionsWriter(StreamWriter):
    """A right stream of completions. The choices of a list of prompts may come in any order."""

    ENDPOINT: ClassVar[Endpoint] = Endpoint.COMPLETIONS
    TABLE: ClassVar[ChoiceTable] = automaton.COMPLETIONS
    IS_ORDERED: ClassVar[bool] = False

    def _said(self, event: Spoken) -> Json | None:
        # The automaton of completions lets nothing else pass.
        return {"text": event.text} if isinstance(event, Text) else None

    def _choice(self, said: Json, fields: Json) -> Json:
        return {"text": said.get("text", ""), **fields}

    def _reason(self, event: Finish) -> str:
        return event.reason


class Completions(Dialect):
    """Answers as /v1/completions gives them."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def writer(self, head: Head, counted: Counted) -> CompletionsWriter:
        """The writer of a stream."""
        return CompletionsWriter(head, usage_is_null=self._asked.usage is True)

    def whole(self, head: Head, reply: Reply) -> bytes:
        """The reply to a request that did not ask for a stream."""
        return whole(head, reply)

    def last_words(self, failure: Failure) -> bytes:
        """An error event, and the end."""
        return error_end(failure)


def whole(head: Head, reply: Reply) -> bytes:
    """The reply to a request that did not ask for a stream."""
    choices = []
    for index, answer in sorted(reply.answers.items()):
        choice = {
            "index": index,
            "text": answer.text,
            "logprobs": answer.logprobs,
            "finish_reason": answer.reason,
        }
        choices.append(choice | answer.delta_fields | answer.choice_fields)
    return escape(msgspec.json.encode(whole_object(head, Endpoint.COMPLETIONS, choices, reply)))
