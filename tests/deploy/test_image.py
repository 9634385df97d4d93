"""What the Dockerfiles put into an image is there, reaches the builder, and is what the program needs."""

import fnmatch
import re
import tomllib
from pathlib import Path

import pytest

from tests.deploy.manifests import ROOT, of_kind
from tests.deploy.manifests import applied as objects

FILES = [ROOT / "deploy" / "Dockerfile", ROOT / "deploy" / "ray" / "Dockerfile"]


def sources(file: Path) -> set[str]:
    """What is copied out of the repository."""
    found = re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+) \S+$", file.read_text(), re.MULTILINE)
    return {word for words in found for word in words.split()}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_what_is_copied_is_there_and_reaches_the_builder(file: Path) -> None:
    lines = file.with_name(file.name + ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == sources(file)
    assert [name for name in sources(file) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_the_package_is_built_of_what_is_copied(file: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    files = [project["project"]["readme"], *project["project"]["license-files"], *wheel["force-include"]]
    packages = [name.split("/")[0] for name in wheel["packages"]]
    assert {*files, *packages, "pyproject.toml"} <= sources(file)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_nothing_of_others_comes_in_without_its_hash(file: Path) -> None:
    commands = re.findall(r"^RUN pip install (.*)$", file.read_text(), re.MULTILINE)
    assert all("--require-hashes" in words or "--no-deps" in words for words in commands)
    assert len(commands) == 2


def test_the_image_has_what_the_extras_need() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / "image.txt").read_text(), re.MULTILINE))
    wanted = {re.split(r"[<>=;\[ ]", word)[0] for extra in ("serve", "redis") for word in extras[extra]}
    assert wanted <= pinned


def test_the_image_and_the_deployment_mean_the_same_user_port_and_settings() -> None:
    text = FILES[0].read_text()
    spec = of_kind(objects(), "Deployment")["welldone"]["spec"]["template"]["spec"]
    user, (container,) = spec["securityContext"], spec["containers"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}" in text
    assert f"useradd --uid {user['runAsUser']} " in text
    assert f"EXPOSE {container['ports'][0]['containerPort']}\n" in text
    assert 'ENTRYPOINT ["welldone"]' in text
    assert f"CMD {container['args']}".replace("'", '"') in text


def test_the_base_has_a_version() -> None:
    bases = [re.findall(r"^FROM (\S+)", file.read_text(), re.MULTILINE) for file in FILES]
    assert all(fnmatch.fnmatch(base, "*:[0-9]*") for each in bases for base in each)
