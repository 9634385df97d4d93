"""An engine with a slow start, as vLLM has: `python slow_engine.py PIPE PORT`.

Starts a worker process, writes progress to stderr, and then reads `go` or `die` from a named pipe.
"""

import os
import subprocess
import sys
from pathlib import Path

pipe, port = sys.argv[1:]
worker = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(1000)"], stdout=-1)
assert worker.stdout is not None
worker.stdout.readline()
sys.stderr.write(f"pids {os.getpid()} {worker.pid}\n")
sys.stderr.write("(EngineCore pid=7) INFO 11-16 02:01:44 [core.py:402] \x1b[2Junpacking sk-0123456789abcdef\n")
sys.stderr.write("\rLoading weights:  10%|#         |")
sys.stderr.write("\rLoading weights:  30%|###       |")
sys.stderr.flush()
if Path(pipe).read_text().strip() == "die":
    sys.stderr.write("\nRuntimeError: no kernel image for this device\n")
    sys.exit(3)
os.execv(sys.executable, [sys.executable, "-m", "welldone.mock.server", "--port", port])
