"""Configuration: every mistake is named with its place and what is accepted, all at once."""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field, fields
from pathlib import Path

import pytest

from murmurate.core.values.slowness import Slowness
from murmurate.errors import ConfigError
from murmurate.programs.cli.main import main
from murmurate.programs.cli.options import add_keys, given
from murmurate.programs.cli.reference import books, renewed
from murmurate.programs.keys.config import KEYS, ROLE_OF, Config, load
from murmurate.programs.keys.gather import gather, key_lines
from murmurate.programs.keys.key import MEMBER, Book, Role, key
from murmurate.programs.keys.kinds import (
    ABOVE_ZERO,
    BELOW_ONE,
    BYTES,
    CODEC,
    KEPT_IN,
    MADE,
    MOMENTUM,
    PART,
    PROGRAM,
    SCHEDULE,
    SECONDS,
    SLACK,
    SLOWNESS,
    YES_OR_NO,
    Shard,
    whole,
)
from murmurate.programs.keys.table import MODES

VARIABLE = "MURMURATE_SEA_DEPTH_M"
EXAMPLES = {
    ABOVE_ZERO: "0.5",
    BELOW_ONE: "0.5",
    BYTES: "200MB",
    CODEC: "int8",
    KEPT_IN: "nowhere",
    MADE: "nowhere.json",
    MOMENTUM: "0.5",
    PART: "0.5",
    PROGRAM: "127.0.0.1:2",
    SCHEDULE: "cosine",
    SECONDS: "3",
    SLACK: "3",
    SLOWNESS: "0.1",
}
ROOT = Path(__file__).parents[2]


def problems(
    tmp_path: Path, text: str = "", environment: dict[str, str] | None = None, **options: str
) -> list[str]:
    """What is said about a file, an environment and options (`train_lr` is train.lr)."""
    file = tmp_path / "node.toml"
    file.write_text(text, encoding="utf-8")
    given = {name.replace("_", ".", 1): value for name, value in options.items()}
    try:
        load(str(file), environment or {}, given)
    except ConfigError as error:
        return [line.replace(str(tmp_path) + "/", "") for line in str(error).splitlines()]
    return []


def test_nothing_given_is_a_configuration() -> None:
    assert load() == Config()


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        '[node]\nname = "a"\npeers = ["10.0.0.5:7000"]\nfound = true\n'
        '[train]\nlr = 1\nshard = "1/4"\nsplit = "dirichlet(0.3)"\n'
    )
    config = load(str(file))
    assert config.node.name == "a"
    assert config.node.peers == ("10.0.0.5:7000",)
    assert config.node.found is True
    assert config.train.lr == 1.0
    assert isinstance(config.train.lr, float)
    assert config.train.shard == Shard(1, 4)
    assert str(config.train.shard) == "1/4"


def test_option_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[train]\nlr = 0.1\nevery = 2\nslow_s = 3\n")
    environment = {"MURMURATE_TRAIN_LR": "0.2", "MURMURATE_TRAIN_EVERY": "3", "PATH": "/bin"}
    train = load(str(file), environment, {"train.lr": "0.3"}).train
    assert (train.lr, train.every, train.slow_s, train.rule) == (
        0.3,
        3,
        Slowness("constant", 3.0),
        "shared",
    )


@pytest.mark.parametrize(
    ("name", "shard", "is_"),
    [
        ("murmurate-3", "ordinal/8", Shard(3, 8)),
        ("murmurate-11", "ordinal/8", Shard(3, 8)),
        ("small-1", "ordinal+4/8", Shard(5, 8)),
        ("murmurate-3", "1/4", Shard(1, 4)),
    ],
)
def test_a_part_of_the_data_by_the_number_in_the_name(name: str, shard: str, is_: Shard) -> None:
    environment = {"MURMURATE_NODE_NAME": name, "MURMURATE_TRAIN_SHARD": shard}
    assert load(None, environment).train.shard == is_


def test_peers_by_a_name_that_stands_for_this_node_too() -> None:
    environment = {
        "MURMURATE_NODE_PEERS": "dns:localhost:7000",
        "MURMURATE_NODE_LISTEN": "127.0.0.1:7000",
    }
    assert load(None, environment).node.peers == ("dns:localhost:7000",)


def test_lists_and_flags_from_text() -> None:
    node = load(None, {"MURMURATE_NODE_INSECURE": "true", "MURMURATE_NODE_PEERS": "a:1, b:2"}).node
    assert node.insecure is True
    assert node.peers == ("a:1", "b:2")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[train]\nlr = nan", "node.toml:2: train.lr = nan: expected a number above 0"),
        ("[train]\nlr = inf", "expected a number above 0"),
        ("[train]\nlr = 0", "expected a number above 0"),
        ("[train]\nlr = true", "expected a number above 0"),
        ("[train]\n\nbatch_size = 0", "node.toml:3: train.batch_size = 0: expected a whole number"),
        ("[train]\nbatch_size = 1.5", "expected a whole number from 1 on"),
        ('[train]\nbatch_size = "8"', "expected a whole number from 1 on"),
        ("[train]\nevery = 0", "expected a whole number from 1 to 1,000,000"),
        ("[train]\nevery = 1000001", "expected a whole number from 1 to 1,000,000"),
        ("[train]\nslow_s = -1", "expected seconds, gaussian"),
        ("[train]\nsamples = 0", "expected a whole number from 1 on"),
        ("[train]\nseconds = 0", "expected a number above 0"),
        ('[train]\nworkload = "digit"', "expected one of digits, digits-bn"),
        ('[train]\nworkload = "digit"', "nearest: digits"),
        ('[train]\nworkload = "none.py:Workload"', "there is no file none.py"),
        ('[train]\nworkload = "none.py"', "expected FILE.py:CLASS"),
        ('[train]\nworkload = "synthetic:many"', "expected synthetic:PARAMETERS"),
        ('[train]\nworkload = "digits:9"', "only synthetic takes a number"),
        ('[train]\nsplit = "label"', "expected none, dataset, labels or dirichlet"),
        ('[train]\nsplit = "dirichlet(-1)"', "expected none, dataset, labels or dirichlet"),
        ('[train]\ntopology = "rng"', "expected one of full, ring"),
        ('[train]\nmode = "ist"', "such as 10.0.0.5:7100: mode ist needs one"),
        ("[ist]\nwidth = 2", "only with mode ist"),
        ('[train]\nrule = "lease"', "or bound with mode gossip"),
        ('[train]\nrule = "summ"', "groups-ea-wild, hogwild; nearest: sum"),
        ('[train]\ncodec = "bf61"', "topk or topk(PART), such as topk(0.01); nearest: bf16"),
        ('[train]\ncodec = "int8"\nrule = "average"', "fp32 with rule average"),
        ('[train]\nmode = "hubb"', "allreduce, hogwild; nearest: hub"),
        ('[train]\nmode = "hub"', "such as 10.0.0.5:7100: mode hub needs one"),
        ('[train]\nshard = "4/4"', 'expected "i/n"'),
        ("[train]\nshard = 1", 'expected "i/n"'),
        ('[train]\nshard = "ordinal4/8"', 'or "ordinal/n"'),
        ('[train]\nshard = "ordinal/8"', "only with a node.name that ends in a number"),
        ('[node]\npeers = ["dns:peers"]', "'dns:peers' is not a peer: expected host:port"),
        ('[node]\npeers = ["dns:peers:0"]', "is not a peer: expected host:port with a port from 1"),
        ('[node]\npeers = ["dns:10.0.0.5:7000"]', "10.0.0.5 is an address, dns: wants a name"),
        ('[node]\npeers = ["dns:p:1", "dns:P:1"]', "is there twice"),
        ('[train]\ndata = "/nowhere"', "expected a file or folder that exists"),
        ('[node]\nname = ""', "expected text in quotes"),
        ("[node]\nname = 3", "expected text in quotes"),
        ('[node]\nrun = "a\\nb"', "printable"),
        ('[node]\nlisten = "127.0.0.1:70000"', "a port up to 65535, not 70000"),
        ('[node]\nlisten = "127.0.0.1"', "expected host:port"),
        ('[node]\npeers = "a:1"', "expected a list of host:port"),
        ('[node]\npeers = ["a:0"]', "a port from 1 to 65535"),
        ('[node]\npeers = ["0.0.0.0:7000"]', "stands for all interfaces"),
        ('[node]\npeers = ["a:1", "b:2", "a:1"]', "'a:1' is there twice"),
        ('[node]\npeers = ["localhost:1", "127.0.0.1:1"]', "is there twice"),
        ("[node]\nfound = false", "name peers to join"),
        ("[node]\nthreads = -1", "expected a whole number from 0 on"),
        ('[report]\npath = "/nowhere/out.json"', "a file in a folder that exists"),
        ("[node]\nnam = 3", "node.toml:2: node.nam = 3: unknown key; nearest: node.name"),
        ("[node]\nlr = 3", "unknown key; nearest: train.lr"),
        ("[train]\nfrog = 3", "unknown key; [train] has workload, data"),
        ("[trian]\nlr = 3", "node.toml:1: [trian]: unknown; the sections are [node], [train]"),
        ("[trian]\nlr = 3", "nearest: train"),
        ("name = 3", "node.toml:1: name = 3: unknown; the sections are"),
        ("train = 3", "node.toml:1: train = 3: a section, [train]"),
        ("[node\n", "node.toml:1: not TOML"),
        ("[node]\nname = 1\nname = 2", "node.toml:3: not TOML"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    (line,) = problems(tmp_path, text)
    assert says in line


def test_all_mistakes_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "[train]\nlr = nan\nfrog = 1\nevery = 0\n"
    found = problems(tmp_path, text, {"MURMURATE_NODE_SEED": "x"}, train_samples="-3")
    assert [line.partition(" ")[0] for line in found] == [
        "node.toml:2:",
        "node.toml:3:",
        "node.toml:4:",
        "MURMURATE_NODE_SEED:",
        "--samples:",
    ]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="expected a TOML file"):
        load(str(tmp_path))
    (tmp_path / "latin").write_bytes(b"# \xff\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(str(tmp_path / "latin"))


@pytest.mark.parametrize(
    "own",
    [
        'listen = "127.0.0.1:7000"',
        'listen = "[::1]:7000"',
        'listen = "0.0.0.0:7000"\nadvertise = "192.0.2.1:7000"\ninsecure = true',
        'advertise = "localhost:7000"',
    ],
)
def test_oneself_is_not_a_peer(tmp_path: Path, own: str) -> None:
    lines = problems(tmp_path, f"[node]\n{own}", node_peers="localhost:7000")
    assert any("is this node itself" in line for line in lines)


def test_beyond_this_machine_only_when_asked_for(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, '[node]\nlisten = "192.0.2.1:0"')
    assert "insecure = true" in line
    assert problems(tmp_path, '[node]\nlisten = "192.0.2.1:0"\ninsecure = true') == []
    (line,) = problems(tmp_path, '[node]\nlisten = "0.0.0.0:0"\ninsecure = true')
    assert "advertise" in line
    assert problems(tmp_path, '[node]\nlisten = "127.0.0.1:0"\ninsecure = false') == []


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (line,) = problems(tmp_path, f'[node]\nlisten = "127.0.0.1:{port}"')
    assert "node.toml:2: node.listen" in line
    assert "in use" in line
    assert problems(tmp_path, f'[node]\nlisten = "127.0.0.1:{port}"') == []


def test_an_unknown_variable_is_named_but_not_those_of_kubernetes(tmp_path: Path) -> None:
    (line,) = problems(tmp_path, "", {"MURMURATE_TRAIN_LRR": "3"})
    assert line == "MURMURATE_TRAIN_LRR = '3': unknown key; nearest: MURMURATE_TRAIN_LR"
    service = {
        "MURMURATE_NODE_SERVICE_HOST": "10.0.0.1",
        "MURMURATE_NODE_SERVICE_PORT_GRPC": "7000",
        "MURMURATE_NODE_PORT": "tcp://10.0.0.1:7000",
        "MURMURATE_NODE_PORT_7000_TCP_ADDR": "10.0.0.1",
        "MURMURATE_HOME": "/",
    }
    assert problems(tmp_path, "", service) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[node]\nname = 1", 2),
        ("# [node]\n\n[ node ]  # here\n  name=1", 4),
        ("node.name = 1", 1),
        ('[node]\nseed = 1\n"name" = 1', 3),
        ('[train]\nname = 1\n["node"]\nname = 1', 4),
        ("node = {name = 1}", None),
        ('[node]\npeers = [\n  "a:1",\n]\nname = 1', 5),
    ],
)
def test_lines_of_keys(text: str, line: int | None) -> None:
    assert key_lines(text).get(("node", "name")) == line


def test_every_key_has_a_field_and_a_default() -> None:
    config = Config()
    for section in fields(Config):
        names = [key.name for key in KEYS if key.section == section.name]
        assert names == [each.name for each in fields(getattr(config, section.name))]


def test_options_and_variables_are_unique() -> None:
    assert len({key.option for key in KEYS}) == len(KEYS)
    assert len({key.variable for key in KEYS}) == len(KEYS)


def test_the_page_lists_every_key() -> None:
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## \[(\w+)\]\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    for each in KEYS:
        assert f"| `{each.name}` |" in sections[each.section], each.path
        assert f"`{each.option}`" in page


def test_the_page_is_as_make_reference_writes_it() -> None:
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    assert renewed(page, books()) == page, "make reference"


def test_a_new_key_is_one_line() -> None:
    """From that line: TOML, environment, option, help, the check, and its row of the reference."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Section:
        depth_m: int = key(whole(1), 3, "how deep", Role.PEER)
        other: bool = key(YES_OR_NO, False, "not for a peer", Role.UP)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Whole:
        sea: Section = field(default_factory=Section)

    book = Book(Whole, Role.PEER)
    (only,) = book.keys
    assert (only.path, only.option, only.variable) == ("sea.depth_m", "--depth-m", VARIABLE)
    assert only.meaning == "how deep (default 3)"
    parser = argparse.ArgumentParser()
    add_keys(parser, book)
    options = given(parser.parse_args(["--depth-m", "7"]), book)
    nothing: dict[str, str] = {}
    for environment, told, depth in ((nothing, nothing, 3), ({VARIABLE: "5"}, nothing, 5)):
        made = book.made(gather(book, None, environment, told, lambda *_: []))
        assert made == Whole(sea=Section(depth_m=depth))
    assert book.made(gather(book, None, {VARIABLE: "5"}, options, lambda *_: [])).sea.depth_m == 7
    with pytest.raises(ConfigError, match=r"--depth-m: sea\.depth_m = 0: expected a whole number"):
        gather(book, None, {}, {"sea.depth_m": "0"}, lambda *_: [])
    with pytest.raises(ConfigError, match="unknown key"):
        gather(book, None, {"MURMURATE_SEA_OTHER": "true"}, {}, lambda *_: [])
    page = "<!-- keys of node in [sea]: make reference -->\n"
    row = "| `depth_m` | whole number from 1 | `3` | `--depth-m` | how deep |\n"
    made_page = renewed(page, {"node": book})
    assert made_page.endswith(row)
    more = made_page.replace("how deep |", "how deep, [see](sea.md) |")
    assert renewed(more, {"node": book}) == more


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_refuses_what_is_not_for_it(tmp_path: Path, mode: str) -> None:
    """By the roles of a key alone: nobody lists it a second time."""
    role = ROLE_OF[mode]
    usual = {"train.mode": mode}
    usual |= {"ist.coordinator": "127.0.0.1:1"} if role & MEMBER else {}
    special = {"train.shard", "train.group", "node.found", "train.rule", "node.peers"}
    if role is Role.IN_STEP:  # one of its rules has a hub, so a rule decides whether it is for this
        special.add("ist.coordinator")
    for each in KEYS:
        if each.path in special or each.path in usual or each.kind not in EXAMPLES:
            continue
        try:
            load(None, {}, {**usual, each.path: EXAMPLES[each.kind]})
            said = ""
        except ConfigError as error:
            said = str(error)
        refused = "with mode" in said
        assert refused == (not each.roles & role), f"{each.path} in {mode}: {said}"


def test_a_wrong_configuration_is_told_without_torch(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[train]\nlr = nan\n")
    code = (
        "import sys\nfrom murmurate.programs.cli.main import main\n"
        f"code = main(['node', '--config', {str(file)!r}, '--check-config'])\n"
        "assert 'torch' not in sys.modules and 'grpc' not in sys.modules\nsys.exit(code)"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr == f"murmurate: {file}:2: train.lr = nan: expected a number above 0\n"
    assert time.monotonic() - began < 20  # 2 s on an idle machine


def test_check_config_of_a_right_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('[node]\nname = "a"\n')
    assert main(["node", "--config", str(file), "--check-config"]) == 0
    assert "right" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["up", "--lr", "nan"], "--lr: train.lr = nan"),
        (["up", "--kill", "node-9@30%"], "--kill 'node-9': one of node-0"),
        (["up", "--slow", "node-1"], "--slow 'node-1': [NAME=]SECONDS"),
        (["node", "--peers", "a", "--check-config"], "--peers: node.peers = ['a']"),
        (["status", "nowhere"], "ADDRESS 'nowhere': expected host:port"),
    ],
)
def test_options_are_checked(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('mode = "allreduce"\nrule = "sum"', "groups or groups-ea-wild with mode allreduce"),
        (
            'mode = "allreduce"\nrule = "k-of-n"',
            "groups or groups-ea-wild with mode allreduce",
        ),
        ('mode = "hogwild"\nrule = "flat"', "hogwild with mode hogwild"),
        ('rule = "flat"', "with mode gossip"),
        (
            'mode = "allreduce"\ngroup = 4',
            "only with mode allreduce and rule",
        ),
        ('mode = "allreduce"\nrule = "hierarchical"\ngroup = 0', "whole number from 1"),
        ('mode = "allreduce"\nevery = 2', "none with mode allreduce"),
        ('mode = "allreduce"\ncodec = "int8"', "fp32 with mode allreduce"),
        ('mode = "hogwild"\ntopology = "ring"', "full with mode hogwild"),
    ],
)
def test_what_a_mode_in_step_has_not_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    (line,) = problems(tmp_path, f"[train]\n{text}")
    assert says in line


def test_a_mode_in_step_has_a_rule_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    for mode, rule in (("allreduce", "flat"), ("hogwild", "hogwild")):
        file.write_text(f'[train]\nmode = "{mode}"\n', encoding="utf-8")
        assert load(str(file)).train.rule == rule
        file.write_text(f'[train]\nmode = "{mode}"\ncodec = "fp32"\n', encoding="utf-8")
        assert load(str(file)).train.codec == "fp32"
