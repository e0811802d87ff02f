"""Only `edge/net/credentials.py` opens a port or a channel, so that what protects one is decided
there. Read from the syntax tree: any mention of a name that opens one counts, called or not."""

import ast

import pytest
from tests.policy.test_purity import ROOT, imported, source_files

ALLOWED = "node/murmurate/edge/net/credentials.py"
PROBES = {"node/murmurate/programs/keys/kinds.py": {"socket.socket"}}
"""It binds an address and lets go of it at once, to say early that it is taken."""
PAIRS = {
    "node/murmurate/programs/up/forked.py": {"socket.socket"},
    "node/murmurate/programs/up/loader.py": {"socket.socket"},
}
"""The two ends of a socket pair between the launcher and the process it starts: no address."""
TORCH = {
    "node/murmurate/edge/net/collective.py": {
        "socket.socket",  # bound to the host this node listens at, and handed to the store
        "create_connection",  # is somebody there? closed at once
        "TCPStore",
        "ProcessGroupGloo",
        "ProcessGroupNCCL",
    }
}
"""torch.distributed opens connections of its own, in plaintext, past all credentials; beyond
loopback it takes `insecure` (docs/synchronous.md). Nobody else may use it."""
OPENS = {
    "TCPStore",
    "ProcessGroupGloo",
    "ProcessGroupNCCL",
    "init_process_group",
    "DistributedDataParallel",
    "insecure_channel",
    "secure_channel",
    "add_insecure_port",
    "add_secure_port",
    "start_server",
    "start_unix_server",
    "create_server",
    "create_unix_server",
    "create_connection",
    "create_unix_connection",
    "create_datagram_endpoint",
    "open_connection",
    "open_unix_connection",
    "urlopen",
    "HTTPServer",
    "ThreadingHTTPServer",
    "HTTPConnection",
    "HTTPSConnection",
}
OPENS_IN = {"grpc.server", "aio.server", "socket.socket"}
"""Words too common to be looked for alone: with what stands before them."""


def opened(source: str) -> set[str]:
    """Every name in it that opens a port or a channel."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id=before) | ast.Attribute(attr=before), attr=name):
                found |= {name} & OPENS | {f"{before}.{name}"} & OPENS_IN
            case ast.Attribute(attr=name) | ast.Name(id=name):
                found |= {name} & OPENS
            case ast.ImportFrom(module=str(module), names=names):
                last = module.rpartition(".")[2]
                for alias in names:
                    found |= {alias.name} & OPENS | {f"{last}.{alias.name}"} & OPENS_IN
    return found


def test_ports_and_channels_are_opened_in_one_place() -> None:
    places = {
        str(file.relative_to(ROOT)): opened(file.read_text(encoding="utf-8"))
        for file in source_files("node", "coordinator")
    }
    assert places.pop(ALLOWED) == {
        "insecure_channel",
        "socket.socket",  # of datagrams, to look up a route: nothing is sent
        "add_insecure_port",
        "aio.server",
        "start_server",
    }
    excepted = {**PROBES, **PAIRS, **TORCH}
    found = {file: names - excepted.get(file, set()) for file, names in places.items()}
    assert {file: names for file, names in found.items() if names} == {}


def test_the_stream_stack_alone_knows_grpc() -> None:
    knows = {
        file.stem
        for file in source_files("node", "coordinator")
        if file.parent.name != "v1"  # generated
        for _, name in imported(ast.parse(file.read_text(encoding="utf-8")))
        if name.partition(".")[0] == "grpc"
    }
    assert knows == {"credentials", "grpc_terms", "stream_server"}


@pytest.mark.parametrize(
    "source",
    [
        "grpc.aio.insecure_channel(address)",
        "from grpc.aio import insecure_channel as dial",
        "grpc.aio.server()",
        "from grpc import aio\naio.server()",
        "from grpc.aio import server",
        "here.open().add_insecure_port('')",
        "await asyncio.start_server(serve)",
        "await loop.create_server(make)",
        "from socket import socket",
        "urllib.request.urlopen(url)",
        "torch.distributed.init_process_group('gloo')",
        "from torch.distributed import TCPStore",
    ],
)
def test_a_place_that_opens_one_is_found(source: str) -> None:
    assert opened(source)


@pytest.mark.parametrize(
    "source", ["credentials.open_port()", "self.server.start()", "socket.gethostname()"]
)
def test_a_place_that_opens_none_is_let_through(source: str) -> None:
    assert not opened(source)


BEGINNINGS = {
    "node/murmurate/edge/net/credentials.py",
    "node/murmurate/programs/keys/credentials.py",
    "node/murmurate/training/join.py",
}
"""Where credentials are chosen: what they are, what a program begins with, what a script does."""
HANDS_DOWN = {"node/murmurate/training/join.py"}


def names_in(node: ast.AST) -> list[str]:
    match node:
        case ast.ImportFrom(names=names):
            return [alias.name for alias in names]
        case ast.Attribute(attr=name) | ast.ClassDef(name=name):
            return [name]
    return []


def chooses(source: str) -> bool:
    """Whether it names credentials of some kind, instead of taking what it is handed."""
    nodes = ast.walk(ast.parse(source))
    return any(name in ("PLAINTEXT", "Plaintext") for node in nodes for name in names_in(node))


def falls_back(source: str) -> list[str]:
    """Functions that do without credentials where they are handed none."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            it = node.args
            ordered = [*it.posonlyargs, *it.args]
            optional: list[tuple[ast.arg, ast.expr | None]] = [
                *zip(ordered[len(ordered) - len(it.defaults) :], it.defaults, strict=True),
                *zip(it.kwonlyargs, it.kw_defaults, strict=True),
            ]
            if any("credentials" in arg.arg and default is not None for arg, default in optional):
                found.append(node.name)
    return found


def test_credentials_are_chosen_where_a_program_begins_and_handed_down() -> None:
    sources = {
        str(file.relative_to(ROOT)): file.read_text(encoding="utf-8")
        for file in source_files("node", "coordinator")
        if file.parent.name != "v1"  # generated
    }
    assert {file for file, source in sources.items() if chooses(source)} == BEGINNINGS
    assert {file for file, source in sources.items() if falls_back(source)} == HANDS_DOWN


def test_who_chooses_or_falls_back_is_found() -> None:
    assert chooses("from murmurate.edge.net.credentials import PLAINTEXT as it")
    assert chooses("from murmurate.edge.net import credentials\ncredentials.PLAINTEXT")
    assert not chooses("from murmurate.edge.net.credentials import Credentials")
    assert falls_back("def dial(address, credentials=None): ...") == ["dial"]
    assert falls_back("async def dial(*, limits=1, credentials=it): ...") == ["dial"]
    assert not falls_back("def dial(address, credentials, limits=None): ...")
