"""Client programs, each started on first use."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.clients.client import Client, Program


@pytest.fixture(scope="session")
def client_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Program], Client]]:
    """Start a client program on first use; all tests share it, since some take seconds to load."""
    running: dict[str, Client] = {}
    with ExitStack() as stack:

        def start(program: Program) -> Client:
            if program.name not in running or not running[program.name].is_running:
                if reason := program.why_missing():
                    pytest.skip(reason)
                client = Client(program.command(), tmp_path_factory.mktemp(program.name))
                running[program.name] = stack.enter_context(client)
            return running[program.name]

        yield start
