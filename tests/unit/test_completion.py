"""`murmurate completion`: what the shells make of its scripts, where they are installed."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from murmurate.programs.cli import completion
from murmurate.programs.cli.main import command_line, main


def commands() -> dict[str, argparse.ArgumentParser]:
    (found,) = (
        each for each in command_line()._actions if isinstance(each, argparse._SubParsersAction)
    )
    return dict(found.choices)


def offered(tmp_path: Path, *typed: str) -> list[str]:
    """By bash, for the last of these words."""
    file = tmp_path / "completion.bash"
    file.write_text(completion.script("bash", command_line()))
    ask = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _murmurate;'
    said = subprocess.run(
        ["bash", "-c", ask + ' printf "%s\\n" "${COMPREPLY[@]}"', "bash", str(file), *typed],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stderr == ""
    return said.stdout.split()


def test_bash_offers_what_there_is(tmp_path: Path) -> None:
    known = commands()
    assert offered(tmp_path, "murmurate", "") == [*known, "--help", "--version"]
    assert offered(tmp_path, "murmurate", "pa") == ["partition"]
    for name, parser in known.items():
        options = [option for action in parser._actions for option in action.option_strings]
        assert offered(tmp_path, "murmurate", name, "-") == options, name
    assert offered(tmp_path, "murmurate", "node", "--check-") == ["--check-config"]
    assert offered(tmp_path, "murmurate", "sim", "--scenario", "ch") == ["churn"]
    assert offered(tmp_path, "murmurate", "reproduce", "00") == ["000", "001", "002", "003", "004"]
    assert offered(tmp_path, "murmurate", "node", "--config", "x") == [], "files are the shell's"


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_every_command_and_option_stands_in_it(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name, parser in commands().items():
        assert re.search(rf"\b{name}\b", script), name
        lines = [line for line in script.splitlines() if re.search(rf"\b{name}\b", line)]
        said = set(re.findall(r"[\w-]+", " ".join(lines)))
        for action in parser._actions:
            for option in action.option_strings:
                word = option.lstrip("-") if shell == "fish" else option
                assert word in said, (name, option)
    if shutil.which(shell) is not None:
        file = tmp_path / "script"
        file.write_text(script)
        subprocess.run([shell, "-n", str(file)], check=True)


def test_help_names_pages_that_are_there() -> None:
    root = Path(__file__).parents[2]
    parser = command_line()
    for text in (parser.format_help(), *(each.format_help() for each in commands().values())):
        joined = re.sub(r"(?<=[-/])\n\s+", "", text)  # a name that was broken at a hyphen
        for page in re.findall(r"docs/[\w/-]+(?:\.\w+)?", joined):
            assert (root / page).is_file(), page
    assert "folder docs of the source" in " ".join(parser.format_help().split())


def test_another_shell_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["completion", "tcsh"])
    assert stop.value.code == 2
    assert "choose from 'bash', 'zsh', 'fish'" in capsys.readouterr().err
