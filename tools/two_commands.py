"""Run `make serve` until a stream ends with `[DONE]`, then `make test`, and print how long each took."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request

MESSAGE = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16, "stream": True}


def main() -> int:
    """Return the exit code of `make test`; the stream of `make serve` is asserted."""
    started = time.monotonic()
    # A free port, since another program may use the usual one. A group, so that the signal reaches the server.
    command = ["make", "serve", "ARGS=--port 0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as server:
        try:
            url = _address(server)
            request = urllib.request.Request(f"{url}/chat/completions", json.dumps(MESSAGE).encode())
            request.add_header("Content-Type", "application/json")
            with urllib.request.urlopen(request, timeout=300) as response:
                lines = [line for line in response.read().decode().splitlines() if line]
            print(f"make serve: {len(lines)} events, the last is {lines[-1]}, after {_since(started)}", flush=True)
        finally:
            os.killpg(server.pid, signal.SIGINT)  # Ctrl-C; make ends by the signal, the server after its last request
            server.communicate(timeout=60)
    if lines[-1] != "data: [DONE]":
        return 1
    started = time.monotonic()
    code = subprocess.run(["make", "test", "COVER=1"], check=False).returncode
    print(f"make test: exit code {code} after {_since(started)}", flush=True)
    return code


def _address(server: "subprocess.Popen[str]") -> str:
    assert server.stdout is not None
    for line in server.stdout:
        print(line, end="", flush=True)
        if found := re.search(r"(http://\S+/v1)\b", line):
            return found[1]
    raise RuntimeError("make serve ended without an address")


def _since(started: float) -> str:
    return f"{time.monotonic() - started:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
