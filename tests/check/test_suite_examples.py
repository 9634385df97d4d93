"""The test files for the suites of other servers (docs/examples), in imitations of these suites.

An imitation has the names that the file imports, and starts `welldone mock`, which breaks no rule. So each of the rules
that the file lists as known is reported as broken no longer, if the server's answers allow a judgement.
"""

import ast
import re
from pathlib import Path

import pytest

from tests.check.test_plugin import pytest_run
from tests.table import table

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
START = """
import re, subprocess

def start():
    process = subprocess.Popen(["welldone", "mock", "--port", "0"], stdout=subprocess.PIPE, text=True)
    return process, re.search(r"(http://\\S+)/v1", process.stdout.readline())[1]
"""
VLLM = {
    "tests/__init__.py": "",
    "tests/utils.py": f"""{START}
class RemoteOpenAIServer:
    def __init__(self, model, vllm_serve_args):
        self.process, self.url_root = start()
    def __enter__(self):
        return self
    def __exit__(self, *error):
        self.process.terminate()
        self.process.communicate()
    def url_for(self, *parts):
        return "/".join((self.url_root, *parts))
""",
}
LLAMA_CPP = {
    "utils.py": f"""{START}
class ServerProcess:
    def start(self):
        self.process, url = start()
        self.server_host, self.server_port = url.removeprefix("http://").split(":")
    def stop(self):
        self.process.terminate()
        self.process.communicate()

class ServerPreset:
    started = []
    @classmethod
    def tinyllama2(cls):
        cls.started.append(ServerProcess())
        return cls.started[-1]
""",
    "conftest.py": """
import pytest, utils

@pytest.fixture(autouse=True)
def stop_server_after_each_test():
    yield
    utils.ServerPreset.started.pop().stop()
""",
}
SGLANG = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/utils.py": """
def kill_process_tree(pid):
    from sglang.test.test_utils import STARTED
    STARTED.terminate()
    STARTED.communicate()
""",
    "sglang/test/__init__.py": "",
    "sglang/test/ci/__init__.py": "",
    "sglang/test/ci/ci_register.py": "def register_cuda_ci(est_time, *, stage, runner_config): pass",
    "sglang/test/test_utils.py": f"""{START}
DEFAULT_SMALL_MODEL_NAME_FOR_TEST = "mock"
DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH = 600
STARTED, DEFAULT_URL_FOR_TEST = start()

def popen_launch_server(model, base_url, timeout, other_args):
    return STARTED
""",
}
SUITES = {"test_vllm.py": VLLM, "test_llama_cpp.py": LLAMA_CPP, "test_sglang.py": SGLANG}


def _known(name: str) -> list[set[str]]:
    """The known rules of a test file, by endpoint. Each has a reason."""
    found = re.search(r"^KNOWN = (\{.*?^\})", (EXAMPLES / name).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None
    known = ast.literal_eval(found[1])
    endpoints = list(known.values()) if name == "test_vllm.py" else [known]
    assert all(reason for rules in endpoints for reason in rules.values())
    return [set(rules) for rules in endpoints]


@pytest.mark.tier2
@table("name", SUITES)
def test_a_right_server_breaks_the_known_rules_no_longer(name: str, tmp_path: Path) -> None:
    for path, text in SUITES[name].items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    code, output = pytest_run(tmp_path, (EXAMPLES / name).read_text("utf-8"))
    assert code == 1, output
    first_lines = re.findall(r"^failed: no longer broken, .* known: (.*)\n.* at http", output, re.MULTILINE)
    assert [set(line.split(", ")) for line in first_lines] == _known(name), output
