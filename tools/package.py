"""Build the package, install it with msgspec only on each supported Python of this machine, and use the library there.

The wheel is built from the tree and from the source distribution, and both must have the same content. `make
test-package` runs this. A Python that is not on the machine is named and not tested; the oldest one is required.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
LOCK = ROOT / "requirements" / "library.txt"
USE = ROOT / "tools" / "use_package.py"


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


def build(folder: Path) -> tuple[Path, Path]:
    """Build the wheel of the tree, and the wheel of the source distribution."""
    _run(sys.executable, "-m", "hatchling", "build", "-d", folder / "tree", cwd=ROOT)
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


def _contents(wheel: Path) -> set[tuple[str, int]]:
    """Names and checksums of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {(info.filename, info.CRC) for info in archive.infolist()}


def _run(*words: str | Path, cwd: Path | None = None) -> None:
    done = subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}")


def _output(*words: str) -> str:
    """What a program prints; empty if it fails."""
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
