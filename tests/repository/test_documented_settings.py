"""The settings, environment variables and extras in the documents exist; their configurations are valid."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.repository.documents import DEPLOYED, DOCUMENTS, ROOT, Code, blocks, expect_none, lines, spans
from welldone.config.settings import SettingField, SettingsError, read_table
from welldone.server import config_file
from welldone.server.config import ALL_FIELDS, read_config

TABLES: dict[str, tuple[SettingField, ...]] = {
    "server": config_file.SERVE_FIELDS,
    "models": config_file.MODEL_FIELDS,
    "models.defaults": config_file.DEFAULT_FIELDS,
    "upstreams": config_file.UPSTREAM_FIELDS,
    "keys": config_file.KEY_FIELDS,
    "limits": config_file.LIMITS_FIELDS,
    "scale": config_file.SCALE_FIELDS,
    "scale.front": config_file.FRONT_FIELDS,
    "scale.engine": config_file.ENGINE_FIELDS,
}
"""The settings by the kind of TOML table."""
KEYS = {key for fields in TABLES.values() for field in fields for key in field.keys}
FOREIGN = {
    "Codex": "env_key supports_websockets openai_base_url web_search",
    "Python": "app",
    "the log": "for_s",
}
"""Keys of other programs."""
FOREIGN_KEYS = {key for keys in FOREIGN.values() for key in keys.split()}


# Configurations.


def configurations() -> Iterator[Code]:
    """The TOML blocks of the documents, and the TOML files, with the settings in their comments."""
    for block in blocks("toml"):
        if not re.match(r"\w+ = ", block.text):  # Codex has keys outside of tables
            yield block
    for path in (*ROOT.glob("docs/examples/*.toml"), *ROOT.glob("deploy/*/*.toml")):
        text = re.sub(r"(?m)^# (\w+ = )", r"\1", path.read_text("utf-8"))
        yield Code(path.relative_to(ROOT).as_posix(), 1, text)


def test_every_configuration_is_valid(tmp_path: Path) -> None:
    problems = []
    for block in configurations():
        (tmp_path / "welldone.toml").write_text(block.text)
        environment = {name: f"the-value-of-{name}" for name in re.findall(r'"env:(\w+)"', block.text)}
        environment |= dict.fromkeys(re.findall(r'store = "env:(\w+)"', block.text), "redis://redis:6379/0")
        try:
            config = read_config({}, environment, folder=tmp_path)
        except SettingsError as error:
            problems.append(block.problem(str(error)))
        else:
            problems += map(block.problem, config.warnings)
    expect_none(problems)


# Names.


def assignment_error(text: str) -> str | None:
    """Why no table of the configuration accepts `key = value`; a placeholder is any value."""
    key, _, value = text.partition(" = ")
    if key not in KEYS:
        return f"there is no setting {key}"
    if "…" in value or "..." in value:
        return None
    errors = []
    for table, fields in TABLES.items():
        try:
            read_table(fields, tomllib.loads(text), table, Path())
        except SettingsError as error:
            errors.append(str(error))
    return None if len(errors) < len(TABLES) else "; ".join(errors)


def test_every_setting_with_a_value_is_accepted() -> None:
    expect_none(
        span.problem(error)
        for span in spans()
        if (assignment := re.match(r"([a-z_-]+) = ", span.text)) and assignment[1] not in FOREIGN_KEYS
        if (error := assignment_error(span.text))
    )


def test_every_table_exists(tmp_path: Path) -> None:
    problems = []
    for span in spans():
        if re.fullmatch(r"\[[a-z]+(\.\w+)*\]( \w+)?", span.text):
            table, _, key = span.text.partition(" ")
            (tmp_path / "welldone.toml").write_text(table)
            try:
                config_file.read_config_file(tmp_path / "welldone.toml")
            except SettingsError as error:
                problems.append(span.problem(str(error)))
            if key and key not in KEYS:
                problems.append(span.problem(f"there is no setting {key}"))
    expect_none(problems)


def named_setting(span: Code) -> str | None:
    """The key that a span names: a name with a unit at its end, `limits.store`, or a name in a column of settings."""
    with_unit = re.fullmatch(r"(?:server\.)?((?!welldone_)\w+_(?:s|bytes|mib|per_minute))", span.text)
    of_table = re.fullmatch(r"limits\.(\w+)", span.text)
    in_column = re.fullmatch(r"([a-z_]+)", span.text) if span.column == "setting" else None
    found = with_unit or of_table or in_column
    return None if found is None else found[1]


def test_every_name_of_a_setting_exists() -> None:
    expect_none(
        span.problem(f"there is no setting {name}")
        for span in spans()
        if (name := named_setting(span)) is not None and name not in KEYS | FOREIGN_KEYS
    )


def test_every_environment_variable_exists() -> None:
    # Tests set many variables for the program; they read a few themselves
    reads = {"src": r'"(WELLDONE_[A-Z_]+)"', "tests": r'environ\.get\("(WELLDONE_[A-Z_]+)"'}
    known = {
        name
        for folder, pattern in reads.items()
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(pattern, path.read_text("utf-8"))
    }
    known.update(name for field in ALL_FIELDS for name in field.variables)
    expect_none(
        line.problem(f"no program reads the environment variable {name}")
        for line in lines(DOCUMENTS | DEPLOYED)
        for name in re.findall(r"\b(?:WELLDONE|LLAMA_ARG|LLAMA_API)_[A-Z_]+", line.text)
        if name not in known
    )


# Extras.

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def test_every_extra_exists() -> None:
    expect_none(
        line.problem(f"there is no extra {name}; there are {', '.join(EXTRAS)}")
        for line in lines()
        for names in re.findall(r"(?:welldone|whl|['\"]\.)\[([a-z,]+)\]|extra `(\w+)`", line.text)
        for name in "".join(names).split(",")
        if name not in EXTRAS
    )


def test_the_installation_page_and_the_readme_list_all_extras() -> None:
    rows = {span.text for span in spans() if span.document == "docs/install.md" and span.column == "extra"}
    assert rows == set(EXTRAS)
    (listed,) = re.findall(r"(?s)\nExtras: (.*?)\n\n", DOCUMENTS["README.md"])
    assert set(re.findall(r"`(\w+)`", listed)) == set(EXTRAS)
    (everything,) = re.findall(r"\[(.*)\]", EXTRAS["all"][0])
    assert set(everything.split(",")) == set(EXTRAS) - {"all", "ray"}  # as both documents say
