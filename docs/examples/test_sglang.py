"""Check SGLang's streams: copy this file to `test/registered/openai_server/validation/test_welldone.py` in SGLang."""

import sys

import pytest
from sglang.srt.utils import kill_process_tree
from sglang.test.ci.ci_register import register_cuda_ci
from sglang.test.test_utils import (
    DEFAULT_SMALL_MODEL_NAME_FOR_TEST,
    DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH,
    DEFAULT_URL_FOR_TEST,
    popen_launch_server,
)

register_cuda_ci(est_time=120, stage="base-b", runner_config="1-gpu-small")

MODEL = DEFAULT_SMALL_MODEL_NAME_FOR_TEST
KNOWN = {  # the rules that SGLang breaks; the test fails if one of them is broken no longer
    "err-body-shape": "errors of chat are {'object': 'error', …}, without an `error` object",
}


@pytest.fixture(scope="module")
def url():
    timeout, options = DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH, ["--tool-call-parser", "llama3"]
    process = popen_launch_server(MODEL, DEFAULT_URL_FOR_TEST, timeout=timeout, other_args=options)
    yield f"{DEFAULT_URL_FOR_TEST}/v1"
    kill_process_tree(process.pid)


def test_streams_break_no_other_rule(url, welldone_check):
    welldone_check(url, model=MODEL, known=KNOWN)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))
