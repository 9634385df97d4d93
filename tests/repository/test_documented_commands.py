"""The commands and flags in the documents exist, and accept the values that the documents give them."""

import contextlib
import io
import itertools
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.repository.documents import DEPLOYED, ROOT, Code, blocks, expect_none, lines, spans
from welldone.cli.completion import command_parser
from welldone.cli.main import COMMANDS, run
from welldone.cli.option_types import ENV_PREFIX
from welldone.cli.ui import UsageError
from welldone.config.settings import RawSetting, SettingField, SettingsError, convert_setting, did_you_mean

OTHER_COMMANDS = {
    "README.md": ("serve", "check"),
    "docs/bench.md": ("bench", "bench compare"),
    "docs/check.md": ("check",),
    "docs/dialects.md": ("serve", "check"),
    "docs/engines.md": ("serve", "engine"),
    "docs/monitoring.md": ("status", "serve"),
    "docs/scaling.md": ("scale", "serve"),
    "docs/serve.md": ("serve", "reload"),
}
"""Commands whose flags a document names without the command. All other documents name those of `serve`."""
FOREIGN = {
    "pip": "--force-reinstall",
    "docker": "-e --time --health-cmd --no-healthcheck",
    "vLLM": "--enable-auto-tool-choice --tool-call-parser --reasoning-parser --enable-prompt-tokens-details "
    "--served-model-name --max-model-len --max-logprobs --enable-force-include-usage --disable-uvicorn-access-log "
    "--gpu-memory-utilization --shutdown-timeout --otlp-traces-endpoint --middleware",
    "the cluster autoscaler": "--max-graceful-termination-sec",
    "tools/capacity.py": "--streams --tokens-per-second --answer-tokens --figure",
    "tools/release.py": "--dry-run",
    "tests/laws/right_answers.py": "--without",
}
"""Flags of other programs that documents name without the program."""
FOREIGN_FLAGS = {flag for flags in FOREIGN.values() for flag in flags.split()}
FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][a-z0-9-]*(?![\w…-])")
MAKE = re.compile(r"(?:^|\s)make ([a-z-]+)")
PLACEHOLDER = re.compile(r"\b[A-Z]+\b|…")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
RECIPES: dict[str, str] = dict(re.findall(r"(?m)^([a-z-]+):.*\n((?:\t.*\n)*)", MAKEFILE))
"""Of each target of make."""


@cache
def flags_of(command: str) -> frozenset[str]:
    """All flags of a command, also those that its help does not list."""
    if command in COMMANDS:
        return frozenset(command_parser(command).flags())
    help_text = io.StringIO()
    with contextlib.redirect_stdout(help_text), contextlib.suppress(SystemExit):
        run([*command.split(), "--help"])
    options = re.findall(r"(?m)^ +-.*", help_text.getvalue())
    return frozenset(FLAG.findall(" ".join(options)))


def unknown_flag(command: str, words: list[str]) -> str | None:
    """The error for a flag that the command does not have."""
    for flag in (word.partition("=")[0] for word in words):
        if FLAG.fullmatch(flag) and flag not in flags_of(command):
            return f"welldone {command} has no flag {flag}{did_you_mean(flag, flags_of(command))}"
    return None


def usage_error(command: str, words: list[str]) -> str | None:
    """Problems with the arguments of a command. If there is a placeholder or no value, only flags are checked."""
    if error := unknown_flag(command, words):
        return error
    if command not in COMMANDS or all(map(FLAG.fullmatch, words)) or PLACEHOLDER.search(" ".join(words)):
        return None
    try:
        options = command_parser(command).parse(words)
        for field, flag, value in getattr(options, "occurrences", ()):  # the settings of serve
            if isinstance(field, SettingField) and not value.startswith(ENV_PREFIX):
                convert_setting(field, RawSetting(value, flag, Path()), {})
    except (SettingsError, UsageError) as error:
        return str(error)
    return None


# Command lines.


def lines_of_shell() -> Iterator[Code]:
    """The lines of the examples, and the code spans that are commands."""
    for block in blocks("sh", "bash", "console"):
        line = block.line
        for text in block.text.replace("\\\n", "\0").split("\n"):
            if block.language != "console" or text.startswith("$ "):
                yield block._replace(line=line, text=text.removeprefix("$ ").replace("\0", ""))
            line += 1 + text.count("\0")
    for span in spans():
        if re.match(r"(\.venv/bin/)?(welldone|make|python) ", span.text) and span.column != "message":
            yield span


def commands_of(line: str) -> Iterator[list[str]]:
    """The words of each command of a line of shell, without assignments and redirections."""
    lexer = shlex.shlex(re.sub(r"\d?>+ *\S+", "", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in (*lexer, ";"):
        if set(word) <= set(lexer.punctuation_chars):
            if words:
                yield words
            words = []
        elif words or not re.match(r"\w+=", word):
            words.append(word)


def welldone_arguments(words: list[str]) -> list[str]:
    """The arguments of welldone if a command runs it: directly, with make, in a container, or through a program."""
    match words:
        case ["make", target, *assignments] if made := re.search(
            r"/welldone (.*) \$\(ARGS\)$", RECIPES.get(target, ""), re.M
        ):
            return shlex.split(" ".join([made[1], *assignments]).replace("ARGS=", ""))
        case ["welldone", *arguments]:
            return arguments
        case _:
            pass
    for program, command in itertools.pairwise(words):
        if re.fullmatch(r"(.*/)?welldone(:[\d.]+)?", program) and command in COMMANDS:
            return words[words.index(program) + 1 :]
    return []


def test_every_command_line_is_accepted() -> None:
    problems = []
    for line in lines_of_shell():
        for words in filter(None, map(welldone_arguments, commands_of(line.text))):
            is_compare = words[:2] == ["bench", "compare"]
            command, arguments = ("bench compare", words[2:]) if is_compare else (words[0], words[1:])
            if command not in COMMANDS and not is_compare:
                problems.append(line.problem(f"welldone has no command {command}; it has {' '.join(COMMANDS)}"))
            elif error := usage_error(command, arguments):
                problems.append(line.problem(error))
    expect_none(problems)


def test_every_target_of_make_exists() -> None:
    expect_none(
        line.problem(f"make has no target {target}; it has {' '.join(RECIPES)}")
        for line in lines_of_shell()
        for target in MAKE.findall(line.text)
        if target not in RECIPES
    )


def test_scripts_have_the_flags_that_they_are_called_with() -> None:
    problems = []
    for line in lines_of_shell():
        recipes = "".join(RECIPES[target] for target in MAKE.findall(line.text) if target in RECIPES)
        calls = re.sub(r"-m benchmarks\.(\w+)", r"benchmarks/\1.py", line.text + recipes)
        if paths := set(re.findall(r"(?:tools|benchmarks)/\w+\.py", calls)):
            source = "".join((ROOT / path).read_text("utf-8") for path in paths)
            known = {
                *re.findall(r'"(--?[\w-]+)"', source),
                *(flags_of("serve") if "parse_known_args" in source else ()),
            }
            flags = FLAG.findall(re.split(r"ARGS=|\.py |-m [\w.]+", line.text)[-1])
            problems += [line.problem(f"{paths} has no flag {flag}") for flag in flags if flag not in known]
    expect_none(problems)


# Flags without a command.


def test_every_flag_belongs_to_a_command_of_its_document() -> None:
    problems = []
    for span in spans():
        flags = FLAG.findall(span.text)
        if not flags or not span.text.startswith("-") or span.column == "message" or FOREIGN_FLAGS.intersection(flags):
            continue
        # Flags of llama-server exist too, but may be refused.
        check, words = (unknown_flag, flags) if span.column == "llama-server" else (usage_error, shlex.split(span.text))
        errors = [check(command, words) for command in OTHER_COMMANDS.get(span.document, ("serve",))]
        if all(errors):
            problems.append(span.problem(str(errors[0])))
    expect_none(problems)


def test_every_flag_in_a_comment_of_a_deployed_file_exists() -> None:
    known = FOREIGN_FLAGS | flags_of("serve")
    expect_none(
        line.problem(f"welldone serve has no flag {flag}{did_you_mean(flag, known)}")
        for line in lines(DEPLOYED)
        for flag in re.findall(r"--[a-z-]+", line.text.partition("# ")[2])
        if flag not in known and "docker" not in line.text
    )
