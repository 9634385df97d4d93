"""`welldone engine`: list the engines for local models, and build llama.cpp for this machine.

List the engines that can run local models: builds of llama.cpp, the wheel that welldone installs, a
llama-server on PATH, and commands of the config file. A * marks the ones that welldone serve uses (see its
option --engine).

The wheel is compiled for old CPUs. `build` compiles the same llama.cpp for this one, with its source from
the package index, and from then on it is used. It needs a C++ compiler; CMake and Ninja are downloaded if
they are missing. An interrupted build goes on where it stopped. `test` measures a build and the wheel again,
`remove` removes a build.

examples:
  welldone engine
  welldone engine build
  welldone engine build --cuda --jobs 4
  welldone engine test b11549-cpu
  welldone engine remove b11549-cpu
"""

from functools import partial

from welldone.cli.option_types import integer_between
from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode, UsageError
from welldone.engines.builds import BACKENDS

_ACTIONS = ("list", "build", "test", "remove")


def run(arguments: list[str]) -> ExitCode:
    """List, build, test or remove engines."""
    options = _parser().parse(arguments)
    if (options.name is not None) != (options.action in ("test", "remove")):
        raise UsageError("write welldone engine, engine build, engine test NAME or engine remove NAME")
    backends = [name for name in BACKENDS if getattr(options, name)]
    if len(backends) > 1 or (options.action != "build" and (backends or options.jobs)):
        raise UsageError("--cuda, --vulkan, --cpu and --jobs belong to welldone engine build; give one backend at most")
    # The packages of the server are an extra; --help and usage errors work without them.
    from welldone.cli import engine_actions, serve

    read_config = partial(serve.read_server_config, options.config)
    return engine_actions.run(options, backends[0] if backends else "cpu", read_config)


def _parser() -> CommandParser:
    parser = CommandParser("engine", __doc__)
    parser.option("ACTION", "list, build, test or remove", dest="action", nargs="?", default="list", choices=_ACTIONS)
    parser.option("NAME", "name of a build", dest="name", nargs="?")
    parser.option("--cpu", "build for the CPU; the default")
    parser.option("--cuda", "build for NVIDIA GPUs and the CPU; needs the CUDA toolkit")
    parser.option("--vulkan", "build for GPUs with Vulkan and the CPU; needs the Vulkan SDK")
    parser.option("--jobs N", "compilers at once (default: one per CPU)", integer_between(1, 1024))
    parser.option("--json", "list the engines as JSON")
    parser.option("--folder", "print only the folder of the builds")
    parser.option("--config FILE", "a TOML file with settings and models")
    return parser
