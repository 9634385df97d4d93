"""Audit of the dependencies: pinned with hashes, and installed as pinned. `--write` writes docs/dependencies.md.

pip-audit looks up known vulnerabilities if its service is reachable and has the packages. If not, the audit reports it
and does not fail: pinned files cannot change. No advisory data is cached, because old data would look current.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "dependencies.md"
RUNTIME = ROOT / "requirements" / "serve.txt"
INSTALLED = tuple(ROOT / "requirements" / f"{name}.txt" for name in ("serve", "test", "dev"))
LOCKS = tuple(f"{folder}/package-lock.json" for folder in ("tests/web", "tests/oracle/node", "tests/oracle/codex"))
MANIFESTS = tuple(sorted((ROOT / "src").rglob("vendor/manifest.json")))
"""Files of others that are in the package: version, licence and hash of each."""
LOOKUP_S = 30.0
"""Timeout of pip-audit. Its service answers within seconds if it is reachable."""
_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[a-z0-9,-]+\])?==(\S+?)(?: ; (.+))?")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
DIRECT = {
    "msgspec": (
        "0.5",
        "JSON and its types",
        "one Struct gives decoding, limits, error texts, JSON schema and documents",
    ),
    "httptools": ("1.7", "HTTP/1.1 parser", "it is llhttp, the strict parser of Node, in C"),
    "prometheus-client": ("0.2", "metrics", "registry, text format and escaping are those that Prometheus tests"),
    "rich": ("6", "progress bar of `welldone pull`", "it knows terminals of any width, pipes and redraws"),
    "uvloop": ("14", "event loop", "it is libuv, and asyncio's own loop has no faster form"),
    "websockets": ("0.8", "frames of WebSockets", "it does no I/O and needs no other package; wsproto needs h11"),
    "xllamacpp": ("106", "llama.cpp as an engine", "a wheel needs no compiler, and no download but the package index"),
    "huggingface-hub": ("22", "models of the hub", "resuming, locks, checksums and mirrors are its job"),
    "tokenizers": ("34", "tokens of a load test", "it counts with the tokenizer of the model, not by an estimate"),
    "redis": ("2.6", "limits and streams of several front ends", "it knows the protocol, TLS and lost connections"),
    "opentelemetry-sdk": ("1.7", "traces", "operators configure its sampling and batches by `OTEL_*`"),
    "opentelemetry-exporter-otlp-proto-http": ("6", "sends traces", "it encodes OTLP, and needs no gRPC"),
    "ray": ("500", "`welldone scale`", "it places replicas on machines and restarts them"),
}
"""Dependencies of pyproject.toml: MB with its own dependencies, what each does, and why it beats code of our own."""
_HEAD = """# Dependencies

The core depends only on msgspec; the others belong to extras. Sizes are those of the installed package with all that
it needs, on x86-64 Linux.

| library | licence | MB | for | better than code of our own, since |
|---|---|--:|---|---|
"""
_ALL_HEAD = """
What was measured about the HTTP server and client, JSON and tables of the command line is in decisions
[9](decisions/009-own-http-client.md), [11](decisions/011-msgspec-only.md) and
[27](decisions/027-command-line-without-libraries.md).

## All packages of a server with local models

Also indirect ones. Each is pinned with the hashes of its files in `requirements/serve.txt`; `make audit` verifies that.

| package | version | licence, or platform marker | required by |
|---|---|---|---|
"""


_VENDORED_HEAD = """
## Files of others in the package

These files are inlined into pages, so that a page works without a network. Each is the file of the npm package, whose
version `tests/web/package.json` pins. `make audit` verifies the hashes. For another version, change the pin, copy the
file from `node_modules`, and update `manifest.json` beside it.

| file | package | licence | size | used for |
|---|---|---|---|---|
"""


class Pin(NamedTuple):
    """A requirement in a lock file."""

    name: str
    version: str
    marker: str
    hashes: int
    needed_by: tuple[str, ...]


def main() -> int:
    """Run the audit; the exit code is 1 if it finds a problem."""
    parser = argparse.ArgumentParser(description="Audit the dependencies of the project.")
    parser.add_argument("--write", action="store_true", help="write docs/dependencies.md")
    options = parser.parse_args()
    files = sorted((ROOT / "requirements").glob("*.txt"))
    problems = [line for file in files for line in pin_problems(file.name, file.read_text("utf-8"))]
    for file in INSTALLED:
        problems += version_problems(read_pins(file.read_text("utf-8")), installed_versions())
    problems += [line for name in LOCKS for line in npm_problems(name, (ROOT / name).read_text("utf-8"))]
    problems += [line for path in MANIFESTS for line in vendored_problems(path)]
    page = render(read_pins(RUNTIME.read_text("utf-8"))) + render_vendored(MANIFESTS)
    if options.write:
        PAGE.write_text(page, "utf-8")
    elif not PAGE.exists() or PAGE.read_text("utf-8") != page:
        problems.append("docs/dependencies.md is stale: run make audit ARGS=--write")
    known, note = vulnerabilities()
    for line in dict.fromkeys([*problems, *known]):
        print(line)
    print(f"{len(files)} requirement files and {len(LOCKS)} npm locks audited; {note}")
    return 1 if problems or known else 0


def requirements(text: str) -> Iterator[str]:
    """The requirements of a lock file, each with its hashes and comments in one line."""
    entry = ""
    for line in text.splitlines():
        if line[:1] in (" ", "\t") and entry:
            entry += " " + line.strip().removesuffix("\\").strip()
        elif line and not line.startswith("#"):
            if entry:
                yield entry
            entry = line.removesuffix("\\").strip()
    if entry:
        yield entry


def read_pins(text: str) -> list[Pin]:
    """The pinned requirements of a lock file."""
    pins = []
    for entry in requirements(text):
        bare, _, comment = entry.partition(" # ")
        if match := _PIN.fullmatch(bare.partition(" --hash=")[0]):
            words = comment.replace("-r requirements/", "").replace("#", " ").replace(",", " ").split()
            needed_by = tuple("welldone" if word.endswith(".in") else word for word in words if word != "via")
            pins.append(Pin(_normalized(match[1]), match[2], match[3] or "", len(_HASH.findall(bare)), needed_by))
    return pins


def pin_problems(name: str, text: str) -> Iterator[str]:
    """Requirements without an exact version and hashes: URLs, folders, ranges, options."""
    for entry in requirements(text):
        bare = entry.partition(" # ")[0]
        if not _PIN.fullmatch(bare.partition(" --hash=")[0]) or not _HASH.search(bare):
            yield f"{name}: {entry[:80]}: not pinned by a version and hashes"
        elif "://" in entry:
            yield f"{name}: {entry[:80]}: has a URL"


def version_problems(pins: list[Pin], installed: Mapping[str, str]) -> Iterator[str]:
    """Packages whose installed version is not a pinned one."""
    versions: dict[str, list[str]] = {}
    for pin in pins:  # a package may be pinned more than once, for different versions of Python
        versions.setdefault(pin.name, []).append(pin.version)
    for name, pinned in versions.items():
        if name in installed and installed[name] not in pinned:
            yield f"{name} {installed[name]} is installed, but {' or '.join(pinned)} is pinned"


def npm_problems(name: str, text: str) -> Iterator[str]:
    """Packages of an npm lock file without a hash, or with a URL."""
    for path, package in json.loads(text)["packages"].items():
        if path and not package.get("link") and "integrity" not in package:
            yield f"{name}: {path} has no hash"
        if "resolved" in package:
            yield f"{name}: {path} has a URL"


def vendored_problems(manifest: Path) -> Iterator[str]:
    """Files beside a manifest that are not as it says, or that it does not name."""
    entries = json.loads(manifest.read_text("utf-8"))
    named = {manifest.name, *(entry["file"] for entry in entries), *(entry["licence_file"] for entry in entries)}
    for name in {path.name for path in manifest.parent.iterdir()} ^ named:
        yield f"{manifest.parent.name}/{name} is not both a file and in the manifest"
    pinned = json.loads((ROOT / "tests/web/package.json").read_text("utf-8"))["dependencies"]
    for entry in entries:
        if pinned.get(entry["package"]) != entry["version"]:
            yield f"{entry['file']} is of {entry['version']}, but package.json pins {pinned.get(entry['package'])}"
        if sha256((manifest.parent / entry["file"]).read_bytes()).hexdigest() != entry["sha256"]:
            yield f"{entry['file']} is not the file of the manifest"


def installed_versions() -> dict[str, str]:
    """Versions of the packages in this environment."""
    return {_normalized(one.metadata["Name"]): one.version for one in metadata.distributions()}


def render(pins: list[Pin]) -> str:
    """The page in Markdown."""
    rows = [
        f"| {pin.name} | {pin.version} | {licence(pin.name) or pin.marker} | {', '.join(pin.needed_by)} |\n"
        for pin in pins
    ]
    reasons = [
        f"| {name} | {licence(name) or 'Apache-2.0'} | {size} | {use} | {reason} |\n"
        for name, (size, use, reason) in DIRECT.items()
    ]
    return _HEAD + "".join(reasons) + _ALL_HEAD + "".join(rows)


def render_vendored(manifests: tuple[Path, ...]) -> str:
    """The section on files of others."""
    rows = [
        f"| {entry['file']} | {entry['package']} {entry['version']} | {entry['licence']} | "
        f"{-(-(manifest.parent / entry['file']).stat().st_size // 1000)} kB | {entry['purpose']} |\n"
        for manifest in manifests
        for entry in json.loads(manifest.read_text("utf-8"))
    ]
    return _VENDORED_HEAD + "".join(rows)


def licence(name: str) -> str:
    """The licence in a package's metadata; empty if it is not installed on this platform."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ""
    classifiers = about.get_all("Classifier") or []
    names = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License ::")]
    licences = [*(about.get_all("License-Expression") or []), ", ".join(names), *(about.get_all("License") or [])]
    return next(filter(None, licences), "unknown").splitlines()[0][:60]


def vulnerabilities() -> tuple[list[str], str]:
    """Known vulnerabilities of the pinned versions, and a note with their number or why they are unknown."""
    words = [sys.executable, "-m", "pip_audit", "--requirement", str(RUNTIME), "--disable-pip", "--require-hashes"]
    words += ["--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LOOKUP_S, check=False)
        packages = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return [], "no advisory data: the service of pip-audit is unreachable"
    if unknown := [one["name"] for one in packages if "skip_reason" in one]:
        return [], f"no advisory data: pip-audit's service lacks {len(unknown)} of {len(packages)} packages"
    found = [f"{one['name']} {one['version']}: {bug['id']}" for one in packages for bug in one.get("vulns", ())]
    return found, f"{len(found)} known vulnerabilities"


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
