"""Build the package, install it with msgspec only on each supported Python of this machine, and use the library there.
Then install it with pipx and run it with uvx, as users do, and check a mock server.

The wheel is built from the tree and from the source distribution, and both must have the same content. `make
test-package` runs this. A Python that is not on the machine is named and not tested; the oldest one is required.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
LOCK = ROOT / "requirements" / "library.txt"
USE = ROOT / "tools" / "use_package.py"
MOCK_TIMEOUT_S = 60.0


def main() -> int:
    """Build and test; the exit code is 1 if the oldest Python is not on this machine."""
    pythons = {version: find_python(version) for version in VERSIONS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, sdist_wheel = build(folder)
        for version, python in pythons.items():
            for package in (wheel, sdist_wheel) if version == VERSIONS[0] else (wheel,):
                if python is not None:
                    test(package, python, Path(tempfile.mkdtemp(dir=folder)))
                    source = "wheel" if package == wheel else "source distribution"
                    print(f"Python {version}: the {source} works ({python})", flush=True)
        test_installers(wheel, folder)
    missing = [version for version, python in pythons.items() if python is None]
    if missing:
        print(f"Not tested, because it is not on this machine: Python {', '.join(missing)}")
    return 1 if VERSIONS[0] in missing else 0


def find_python(version: str) -> str | None:
    """An interpreter of this version: the one that runs, on PATH, of pyenv, or of uv."""
    candidates = [sys.executable, shutil.which(f"python{version}")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += sorted(map(str, pyenv.glob(f"versions/{version}.*/bin/python")))
    if shutil.which("uv"):
        candidates.append(_output("uv", "python", "find", "--managed-python", "--no-python-downloads", version))
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return next((one for one in candidates if one and _output(one, "-I", "-c", code) == version), None)


def build(folder: Path, tree: Path = ROOT) -> tuple[Path, Path]:
    """Build the wheel of the tree, and the wheel of the source distribution."""
    _run(sys.executable, "-m", "hatchling", "build", "-d", folder / "tree", cwd=tree)
    (sdist,), (wheel,) = (folder / "tree").glob("*.tar.gz"), (folder / "tree").glob("*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    source = folder / sdist.name.removesuffix(".tar.gz")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "sdist", cwd=source)
    sdist_wheel = folder / "sdist" / wheel.name
    if differences := _contents(wheel) ^ _contents(sdist_wheel):
        sys.exit(f"The wheels of the tree and of the source distribution differ: {sorted(differences)}")
    return wheel, sdist_wheel


def test(package: Path, python: str, folder: Path) -> None:
    """Install a wheel and msgspec into a new environment, and use the library and the command in it."""
    _run(python, "-m", "venv", "--without-pip", folder)
    installed = folder / "bin" / "python"
    if shutil.which("uv"):
        install = ["uv", "pip", "install", "--quiet", "--python", str(installed)]
    else:
        install = [sys.executable, "-m", "pip", "--python", str(installed), "install", "--quiet"]
    _run(*install, "--require-hashes", "-r", LOCK)
    _run(*install, "--no-deps", package)
    # Isolated (-I): no PYTHONPATH, and not the folder of this file.
    _run(installed, "-I", USE, cwd=folder)
    _run(installed, "-I", "-m", "welldone", "rules", "fin-always-sent", cwd=folder)


def test_installers(wheel: Path, folder: Path) -> None:
    """Install the wheel with pipx, run it with uvx, and check a mock server with both."""
    wheels = folder / "wheels"
    # pip knows the package index of this machine; uv may not.
    _run(sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "-d", wheels, "-r", LOCK)
    offline = ["--no-index", "--find-links", str(wheels)]
    with _mock_server() as url:
        uv = _find_tool("uv")
        own_folders = {"UV_CACHE_DIR": str(folder / "uv-cache"), "UV_TOOL_DIR": str(folder / "uv-tools")}
        uvx = [uv, "tool", "run", "--quiet", *offline, "--python", sys.executable, "--from", str(wheel)]
        _run(*uvx, "welldone", "check", url, cwd=folder, environment=own_folders)
        print("uvx: runs the wheel", flush=True)
        names = {"PIPX_HOME": "pipx", "PIPX_BIN_DIR": "pipx-bin", "PIPX_MAN_DIR": "pipx-man"}
        own_folders = {name: str(folder / value) for name, value in names.items()}
        # pipx installs a pip of its own from the index.
        pipx = [_find_tool("pipx"), "install", "--python", sys.executable, "--quiet"]
        _run(*pipx, wheel, cwd=folder, environment=own_folders)
        _run(folder / "pipx-bin" / "welldone", "check", url, cwd=folder)
        if not (folder / "pipx-man" / "man1" / "welldone.1").is_file():
            sys.exit("pipx did not install the manual page")
        print("pipx: installs the wheel, with its manual page", flush=True)


def _find_tool(name: str) -> str:
    """The program, in its own environment (`make test-package` creates it) or on PATH."""
    own = ROOT / f".venv-{name}" / "bin" / name
    found = str(own) if own.is_file() else shutil.which(name)
    if found is None:
        sys.exit(f"{name} is not installed: run make .venv-{name}/.ready")
    return found


@contextmanager
def _mock_server() -> Iterator[str]:
    """A server without violations, of this tree."""
    command = [sys.executable, "-m", "welldone", "mock", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        watchdog = threading.Timer(MOCK_TIMEOUT_S, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            found = next((match[0] for line in process.stdout if (match := re.search(r"http://\S+/v1", line))), None)
            watchdog.cancel()
            if found is None:
                sys.exit("the mock server did not start")
            yield found
        finally:
            watchdog.cancel()
            process.kill()


def _contents(wheel: Path) -> set[tuple[str, int]]:
    """Names and checksums of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {(info.filename, info.CRC) for info in archive.infolist()}


def _run(*words: str | Path, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}")


def _output(*words: str) -> str:
    """What a program prints; empty if it fails."""
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
