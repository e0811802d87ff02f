"""The generated code says what proto/ says; otherwise: `make proto`.

The generator lives in a venv of its own, which a fresh clone does not have. So the .proto file is
read here, as far as it uses the language, and compared with the descriptor inside the generated
code: comments may change without it, a field may not.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from murmurate.v1 import coordinator_pb2, peer_pb2

ROOT = Path(__file__).parents[2]
PROTOS = sorted((ROOT / "proto").rglob("*.proto"))
SCALARS = {"double": 1, "uint64": 4, "fixed64": 6, "bool": 8, "string": 9, "bytes": 12}
SCALARS |= {"fixed32": 7, "uint32": 13, "sint64": 18}
ENUM, MESSAGE = 14, 11

# (kind, name) of a block -> its lines: fields as (name, number, type, repeated, oneof)
Schema = dict[tuple[str, str], list[Any]]


def written(source: str) -> tuple[str, Schema]:
    """The package and what a .proto file declares, in order."""
    source = re.sub(r"//[^\n]*", "", source)
    assert "/*" not in source
    tokens = re.findall(r'"[^"]*"|[\w.]+|[{}=;()]', source)
    package = ""
    schema: Schema = {}
    at = 0

    def take(*expected: str) -> None:
        nonlocal at
        assert tuple(tokens[at : at + len(expected)]) == expected, tokens[at : at + 8]
        at += len(expected)

    def statement() -> list[str]:
        nonlocal at
        end = tokens.index(";", at)
        words, at = tokens[at:end], end + 1
        return words

    def field(oneof: str) -> tuple[str, int, str, bool, str]:
        words = statement()
        repeated = words[0] == "repeated"
        kind, name, equals, number = words[repeated:]
        assert equals == "="
        return name, int(number), kind, repeated, oneof

    while at < len(tokens):
        word = tokens[at]
        if word == "syntax":
            assert statement() == ["syntax", "=", '"proto3"']
        elif word == "package":
            package = statement()[1]
        elif word in ("message", "enum", "service"):
            block: list[Any] = []
            schema[word, tokens[at + 1]] = block
            take(word, tokens[at + 1], "{")
            while tokens[at] != "}":
                if word == "enum":
                    name, equals, number = statement()
                    assert equals == "="
                    block.append((name, int(number)))
                elif word == "service":
                    block.append(" ".join(statement()))
                elif tokens[at] == "oneof":
                    oneof = tokens[at + 1]
                    take("oneof", oneof, "{")
                    while tokens[at] != "}":
                        block.append(field(oneof))
                    take("}")
                elif tokens[at] == "reserved":
                    block.append(("reserved", int(statement()[1])))
                else:
                    block.append(field(""))
            take("}")
            block.sort(key=lambda each: each[0] == "reserved")  # a descriptor has them apart
        else:
            raise AssertionError(f"not understood here: {tokens[at : at + 5]}")
    return package, schema


def generated(file: Any) -> tuple[str, Schema]:
    """The same from a descriptor."""
    names = {number: name for name, number in SCALARS.items()}
    schema: Schema = {}
    for message in file.message_type:
        assert not message.nested_type
        schema["message", message.name] = [
            (
                field.name,
                field.number,
                names.get(field.type) or field.type_name.removeprefix(f".{file.package}."),
                field.label == field.LABEL_REPEATED,
                message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else "",
            )
            for field in message.field
        ] + [("reserved", each.start) for each in message.reserved_range]
        for field in message.field:
            assert field.type in {*names, ENUM, MESSAGE}
    for enum in file.enum_type:
        schema["enum", enum.name] = [(value.name, value.number) for value in enum.value]
    for service in file.service:
        schema["service", service.name] = [
            f"rpc {each.name} ( {'stream ' * each.client_streaming}{_last(each.input_type)} )"
            f" returns ( {'stream ' * each.server_streaming}{_last(each.output_type)} )"
            for each in service.method
        ]
    return file.package, schema


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def descriptor(module: Any) -> Any:
    return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def test_every_proto_file_is_looked_at() -> None:
    assert [file.name for file in PROTOS] == ["coordinator.proto", "peer.proto"]


@pytest.mark.parametrize("module", [coordinator_pb2, peer_pb2])
def test_the_generated_code_is_fresh(module: Any) -> None:
    file = descriptor(module)
    assert written((ROOT / "proto" / file.name).read_text(encoding="utf-8")) == generated(file)


def test_stubs_and_service_are_of_the_same_time() -> None:
    folder = ROOT / "node/murmurate/v1"
    file = descriptor(peer_pb2)
    stub = (folder / "peer_pb2.pyi").read_text(encoding="utf-8")
    found = dict(
        re.findall(r"^class (\w+)\(_message.Message\):\n    __slots__ = (.*)$", stub, re.M)
    )
    assert {name: re.findall(r'"(\w+)"', slots) for name, slots in found.items()} == {
        message.name: [field.name for field in message.field] for message in file.message_type
    }
    service = (folder / "peer_pb2_grpc.py").read_text(encoding="utf-8")
    for each in file.service:
        for method in each.method:
            assert f"'/{file.package}.{each.name}/{method.name}'" in service


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("uint64 offset = 2;", "uint64 offset = 9;"),
        ("uint64 offset = 2;", "uint32 offset = 2;"),
        ("uint64 offset = 2;", ""),
        ("bool skip = 3;", "bool skip = 3;\n  bool more = 4;"),
        ("repeated Stamp stamps = 3;", "Stamp stamps = 3;"),
        ("STATE_LEFT = 4;", "STATE_LEFT = 5;"),
        ("returns (stream Frame)", "returns (Frame)"),
        ("oneof kind {", "oneof sort {"),
    ],
)
def test_a_change_is_noticed(old: str, new: str) -> None:
    file = descriptor(peer_pb2)
    source = (ROOT / "proto" / file.name).read_text(encoding="utf-8")
    assert old in source
    assert written(source.replace(old, new)) != generated(file)
