"""The dialect of /v1/completions: events as its stream, and as its whole reply."""

from typing import ClassVar

import msgspec

from welldone.wire import automaton
from welldone.wire.automaton import ChoiceTable
from welldone.wire.collect import Reply
from welldone.wire.dialects.chat import whole_object
from welldone.wire.dialects.stream import Spoken, StreamWriter, escape
from welldone.wire.events import Finish, Json, Text
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
