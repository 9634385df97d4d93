"""The Dockerfiles: copied files exist, reach the builder, and are complete."""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.deploy.manifests import ROOT, of_kind
from tests.deploy.manifests import applied as objects
from tests.support.faults import small_server
from tests.support.server import LIMIT_S
from welldone.engines.models.store import models_folder

FILES = [ROOT / "deploy" / "Dockerfile", ROOT / "deploy" / "ray" / "Dockerfile"]


def sources(file: Path) -> set[str]:
    """Files that are copied from the repository."""
    found = re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+) \S+$", file.read_text(), re.MULTILINE)
    return {word for words in found for word in words.split()}


def final_stage() -> list[tuple[str, str]]:
    """Instructions of the final stage with their arguments, continuation lines joined."""
    text = re.sub(r"^#.*\n", "", FILES[0].read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line]
    start = max(index for index, (word, _) in enumerate(lines) if word == "FROM")
    return [(word, rest) for word, rest in lines[start:]]


def instruction(name: str) -> str:
    """Arguments of the only instruction of this name."""
    (rest,) = [rest for word, rest in final_stage() if word == name]
    return rest


def environment() -> dict[str, str]:
    """Environment variables of the image."""
    return dict(pair.split("=", 1) for pair in instruction("ENV").split())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_copied_files_exist_and_reach_the_builder(file: Path) -> None:
    lines = file.with_name(file.name + ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == sources(file)
    assert [name for name in sources(file) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_the_package_is_built_from_copied_files(file: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    files = [project["project"]["readme"], *project["project"]["license-files"]]
    files += [*wheel["force-include"], *wheel["shared-data"]]
    packages = [name.split("/")[0] for name in wheel["packages"]]
    assert {*files, *packages, "pyproject.toml"} <= sources(file)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_the_wheel_can_be_built_from_the_copied_files_alone(file: Path, tmp_path: Path) -> None:
    for name in sources(file):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "dist").glob("*.whl"))) == 1


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_no_line_is_for_one_processor(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert not [line for line in lines if re.search(r"x86|amd64|aarch64|arm64|--platform", line)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_dependencies_are_installed_with_hashes(file: Path) -> None:
    commands = re.findall(r"^RUN pip install (.*)$", file.read_text(), re.MULTILINE)
    assert all("--require-hashes" in words or "--no-deps" in words for words in commands)
    assert len(commands) == 2


def test_the_image_has_the_dependencies_of_the_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / "serve.txt").read_text(), re.MULTILINE))
    required = {re.split(r"[<>=;\[ ]", word)[0] for extra in ("serve", "redis") for word in extras[extra]}
    assert required <= pinned


def test_the_image_and_the_deployment_agree_on_user_port_and_settings() -> None:
    text = FILES[0].read_text()
    spec = of_kind(objects(), "Deployment")["welldone"]["spec"]["template"]["spec"]
    user, (container,) = spec["securityContext"], spec["containers"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}" in text
    assert f"useradd --uid {user['runAsUser']} " in text
    assert f"EXPOSE {container['ports'][0]['containerPort']}\n" in text
    assert 'ENTRYPOINT ["welldone"]' in text
    assert f"CMD {container['args']}".replace("'", '"') in text


def test_the_base_image_has_a_version() -> None:
    bases = [re.findall(r"^FROM (\S+)", file.read_text(), re.MULTILINE) for file in FILES]
    assert all(fnmatch.fnmatch(base, "*:[0-9]*") for each in bases for base in each)


def test_the_image_has_the_system_libraries_of_the_engine() -> None:
    installs = " ".join(rest for word, rest in final_stage() if word == "RUN" and "apt-get install" in rest)
    assert "libgomp1" in installs.split()
    # The import during the build fails if another library is missing.
    assert all('RUN python -c "import xllamacpp"' in file.read_text() for file in FILES)


def test_downloaded_models_go_to_a_volume_owned_by_the_user_of_the_image() -> None:
    folder, user = models_folder(environment()), instruction("USER").partition(":")[0]
    assert str(folder.parent) == instruction("VOLUME")
    command = next(rest for word, rest in final_stage() if word == "RUN" and "install --directory" in rest)
    assert f"--owner {user}" in command
    assert str(folder) in command.split()
    words = [word for word, _ in final_stage()]
    assert words.index("USER") > max(index for index, word in enumerate(words) if word == "RUN")


@pytest.mark.parametrize("options", [[], ["--host", "0.0.0.0", "--allowed-hosts", "api.example"]], ids=["", "hosts"])
def test_the_health_check_follows_the_server(tiny_model: Path, options: list[str]) -> None:
    program, *words = json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])
    assert program == "python"

    def code(port: int) -> int:
        env = {**os.environ, "WELLDONE_PORT": str(port), "http_proxy": "http://127.0.0.1:9"}
        return subprocess.run([sys.executable, *words], env=env, timeout=LIMIT_S, capture_output=True).returncode

    with small_server(tiny_model, *options) as server:
        assert code(server.port) == 0
        assert server.end() == 0
        assert code(server.port) == 1
