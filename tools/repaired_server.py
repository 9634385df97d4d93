"""Start another project's server with `RepairMiddleware` in front: python tools/repaired_server.py NAME ARGUMENTS...

Runs the server's own program with its own arguments. Only its application factory is replaced, by one that wraps the
application. The middleware is outermost: Starlette's `add_middleware` would put it inside of the middleware that
answers exceptions with a plain text `Internal Server Error`. Runs in the environment of the server.
"""

import sys
from importlib import import_module
from typing import Any

from welldone.asgi import RepairMiddleware

# Module and name of the application factory, as the program looks it up, and module of the program's `main`.
PROGRAMS = {
    "llama-cpp-python": ("llama_cpp.server.__main__", "create_app", "llama_cpp.server.__main__"),
    "transformers": ("transformers.cli.serving.server", "build_server", "transformers.cli.transformers"),
}


def main(name: str) -> None:
    """Run the program with the remaining arguments."""
    module_name, factory_name, program = PROGRAMS[name]
    module = import_module(module_name)
    factory = getattr(module, factory_name)

    def make_repaired_app(*arguments: Any, **options: Any) -> RepairMiddleware:  # noqa: ANN401 - of any factory
        return RepairMiddleware(factory(*arguments, **options))

    setattr(module, factory_name, make_repaired_app)
    import_module(program).main()


if __name__ == "__main__":
    main(sys.argv.pop(1))
