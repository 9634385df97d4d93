"""The manual page: complete, and without a warning of mandoc."""

import re
import shutil
import subprocess

import pytest

from tools import man_page
from welldone.cli.completion import command_options, command_parser
from welldone.cli.main import COMMANDS

PAGE = man_page.PATH.read_text("utf-8")


def test_every_option_of_every_command_is_on_the_page() -> None:
    sections = re.split(r"(?m)^\.SH WELLDONE ", PAGE)[1:]
    by_command = {section.partition("\n")[0].lower(): section for section in sections}
    assert list(by_command) == list(COMMANDS)
    for command, section in by_command.items():
        for option in command_options(command_parser(command)):
            for flag in option.flags:
                assert f"\\fB{flag.replace('-', chr(92) + '-')}\\fR" in section


def test_no_line_is_an_unknown_request() -> None:
    requests = {line.split()[0] for line in PAGE.splitlines() if line.startswith((".", "'"))}
    assert requests <= {'.\\"', ".TH", ".SH", ".TP", ".PP", ".B", ".I", ".RI", ".nf", ".fi", ".RS", ".RE"}


@pytest.mark.tier2
def test_mandoc_has_no_warning() -> None:
    program = shutil.which("mandoc")
    if program is None:
        pytest.skip("mandoc is not installed (system package mandoc)")
    done = subprocess.run([program, "-T", "lint", "-W", "warning", str(man_page.PATH)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
