"""The Haystack pipeline that Hayhooks deploys as a model: one chat generator in front of another server.

It forwards the settings of the request that a generator takes. Hayhooks loads each folder that has this file.
"""

import os
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from hayhooks import BasePipelineWrapper, streaming_generator
from haystack import Pipeline
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret

FORWARDED = ("max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "tools", "tool_choice")


class PipelineWrapper(BasePipelineWrapper):
    """Asks the upstream, with the settings of the request."""

    def setup(self) -> None:
        """Build the pipeline."""
        self.pipeline = Pipeline()
        self.pipeline.add_component(
            "llm",
            OpenAIChatGenerator(
                api_key=Secret.from_env_var("UPSTREAM_KEY"),
                model="smollm2-135m-instruct",
                api_base_url=os.environ["UPSTREAM_URL"],
            ),
        )

    def run_chat_completion(
        self, model: str, messages: Sequence[Mapping[str, Any]], body: Mapping[str, Any]
    ) -> Generator[Any, None, None]:
        """Return the chunks of one answer."""
        del model
        options = {name: body[name] for name in FORWARDED if body.get(name) is not None}
        prompt = [ChatMessage.from_openai_dict_format(dict(message)) for message in messages]
        arguments = {"llm": {"messages": prompt, "generation_kwargs": options}}
        return streaming_generator(pipeline=self.pipeline, pipeline_run_args=arguments)
