"""Check llama.cpp's streams: copy this file to `tools/server/tests/unit/test_welldone.py` in llama.cpp."""

import pytest
from utils import ServerPreset, ServerProcess

KNOWN = {  # the rules that llama.cpp breaks; the test fails if one of them is broken no longer
    "delta-role-first": "no role chunk if the first token is a part of a character",
    "err-body-shape": "`code` is a number, and `param` is missing",
    "ext-logprobs-shape": "the entries of logprobs have an `id`",
    "live-stop-holdback-flushed": "text that may begin a stop string is lost at the end",
    "sse-no-foreign-json": "a list of prompts ends with `data: null`",
    "use-final-chunk": "completions have no usage chunk of their own",
    "use-last": "with n=2 the usage of the first choice comes before the end of the second",
    "use-null-elsewhere": "completions have their usage in the chunk with the finish reason",
    "use-only-if-asked": "completions have usage that nobody asked for",
}

server: ServerProcess


@pytest.fixture(autouse=True)
def create_server():
    global server
    server = ServerPreset.tinyllama2()
    server.n_ctx, server.n_slots, server.jinja = 8192, 4, True


def test_streams_break_no_other_rule(welldone_check):
    server.start()
    welldone_check(f"http://{server.server_host}:{server.server_port}/v1", known=KNOWN, skip=["long"])
