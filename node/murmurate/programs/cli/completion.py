"""`murmurate completion`: scripts by which a shell completes commands, options and choices. They
are made from the same tree that reads the command line, so they name what this version takes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Words(NamedTuple):
    """What can stand after one command."""

    summary: str
    options: list[str]
    """Without a value, or with any: then files are offered."""
    choices: dict[str, list[str]]
    """By option, where its value is one of a few; under "" what stands without one."""


def words(parser: argparse.ArgumentParser) -> dict[str, Words]:
    """By command."""
    (commands,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    summaries = {each.dest: each.help or "" for each in commands._choices_actions}
    return {
        name: _words(summaries.get(name, ""), each._actions)
        for name, each in commands.choices.items()
    }


def _words(summary: str, actions: list[argparse.Action]) -> Words:
    found = Words(summary, [], {})
    for action in actions:
        found.options.extend(action.option_strings)
        if action.choices is not None:
            chosen = [str(each) for each in action.choices]
            found.choices.update(dict.fromkeys(action.option_strings or [""], chosen))
    return found


def bash(known: dict[str, Words]) -> Iterator[str]:
    yield "_murmurate() {"
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" choices='
    yield '    case "${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]}" in'
    for name, option, choices in _choices(known):
        yield f'        "{name} {option}") choices="{choices}" ;;'
    yield "    esac"
    yield '    if [[ "$COMP_CWORD" -eq 1 ]]; then'
    yield f'        choices="{" ".join(known)} --help --version"'
    yield '    elif [[ -z "$choices" ]]; then'
    yield '        case "${COMP_WORDS[1]} $word" in'
    for name, each in known.items():
        yield f'            "{name} -"*) choices="{" ".join(each.options)}" ;;'
        if each.choices.get(""):
            yield f'            "{name} "*) choices="{" ".join(each.choices[""])}" ;;'
    yield "        esac"
    yield "    fi"
    yield '    COMPREPLY=($(compgen -W "$choices" -- "$word"))'
    yield "}"
    yield "complete -o default -F _murmurate murmurate"


def zsh(known: dict[str, Words]) -> Iterator[str]:
    yield "#compdef murmurate"
    yield "_murmurate() {"
    yield f"    (( CURRENT == 2 )) && {{ compadd -- {' '.join(known)} --help --version; return }}"
    yield '    case "$words[2] $words[CURRENT-1]" in'
    for name, option, choices in _choices(known):
        yield f'        "{name} {option}") compadd -- {choices}; return ;;'
    yield "    esac"
    yield '    case "$words[2] $PREFIX" in'
    for name, each in known.items():
        yield f'        "{name} -"*) compadd -- {" ".join(each.options)} ;;'
        if each.choices.get(""):
            yield f'        "{name} "*) compadd -- {" ".join(each.choices[""])} ;;'
    yield "        *) _files ;;"
    yield "    esac"
    yield "}"
    yield "compdef _murmurate murmurate"


def fish(known: dict[str, Words]) -> Iterator[str]:
    """It offers files by itself."""
    for name, each in known.items():
        summary = each.summary.replace("\\", "\\\\").replace("'", "\\'")
        yield f"complete -c murmurate -n __fish_use_subcommand -f -a {name} -d '{summary}'"
        here = f"complete -c murmurate -n '__fish_seen_subcommand_from {name}'"
        for option in each.options:
            kind = "-l" if option.startswith("--") else "-s"
            chosen = each.choices.get(option)
            yield f"{here} {kind} {option.lstrip('-')}" + (
                f" -x -a '{' '.join(chosen)}'" if chosen else ""
            )
        if each.choices.get(""):
            yield f"{here} -f -a '{' '.join(each.choices[''])}'"


def _choices(known: dict[str, Words]) -> Iterator[tuple[str, str, str]]:
    for name, each in known.items():
        for option, choices in each.choices.items():
            if option:
                yield name, option, " ".join(choices)


SHELLS: dict[str, Callable[[dict[str, Words]], Iterator[str]]] = {
    "bash": bash,
    "zsh": zsh,
    "fish": fish,
}


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """For that shell, whole."""
    return "\n".join(SHELLS[shell](words(parser))) + "\n"
