"""Run LitServe with its OpenAI specification in front of another server: python tools/litserve_app.py URL KEY PORT

The application passes on what LitServe hands to it (`context` has the parameters of the request) and yields the text of
the upstream's stream. Runs in the environment of the server.
"""

import sys
from collections.abc import Iterator
from typing import Any

import litserve
import openai

FORWARDED = ("max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "response_format")


class Forward(litserve.LitAPI):
    """Asks the upstream, with the settings of the request."""

    def setup(self, device: str) -> None:
        """Called once in the worker process."""
        del device
        self.client = openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2])

    def predict(self, request: Any, context: dict[str, Any]) -> Iterator[str | dict[str, Any]]:  # noqa: ANN401
        """Yield the text of one answer, then its usage, as LitServe takes it: in the last message."""
        options = {name: context[name] for name in FORWARDED if context.get(name) is not None}
        messages = [message.model_dump(exclude_none=True) for message in request.messages]
        options["stream_options"] = {"include_usage": True}
        for chunk in self.client.chat.completions.create(
            model=request.model, messages=messages, stream=True, **options
        ):
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content
            if chunk.usage:
                counts = ("prompt_tokens", "completion_tokens", "total_tokens")
                usage = {name: getattr(chunk.usage, name) for name in counts}
                yield {"role": "assistant", "content": "", **usage}


if __name__ == "__main__":
    litserve.LitServer(Forward(spec=litserve.OpenAISpec(), max_batch_size=1), workers_per_device=4).run(
        host="127.0.0.1", port=int(sys.argv[3]), generate_client_file=False
    )
