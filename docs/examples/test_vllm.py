"""Check vLLM's streams: copy this file to `tests/entrypoints/openai/chat_completion/test_welldone.py` in vLLM."""

import pytest
from tests.utils import RemoteOpenAIServer

MODEL = "Qwen/Qwen3-0.6B"
ARGS = ["--dtype", "bfloat16", "--max-model-len", "8192", "--enforce-eager"]
ARGS += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"]
KNOWN = {  # the rules that vLLM breaks, by endpoint; the test fails if one of them is broken no longer
    "chat": {
        "err-body-shape": "errors of the framework are {'detail': …}, without an `error` object",
        "err-status-before-stream": "a wrong top_logprobs is an error in the stream, after status 200",
        "ext-logprobs-shape": "the entries of logprobs lack fields",
        "tool-no-markup-leak": "a tool call that is cut off by max_tokens stays in the text",
    },
    "responses": {
        "err-body-shape": "errors of the framework are {'detail': …}, without an `error` object",
        "resp-terminal-once": "an incomplete answer ends with response.completed",
    },
}


@pytest.fixture(scope="module")
def server():
    with RemoteOpenAIServer(MODEL, ARGS) as remote_server:
        yield remote_server


@pytest.mark.parametrize("endpoint", KNOWN)
def test_streams_break_no_other_rule(server, welldone_check, endpoint):
    welldone_check(server.url_for("v1"), model=MODEL, endpoint=endpoint, known=KNOWN[endpoint])
