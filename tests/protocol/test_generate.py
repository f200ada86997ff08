"""The stubs in the tree are those that the .proto files make."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from shoal.protocol import generate
from shoal.protocol.generated import coordinator_pb2, peer_pb2

VERSION_LINE = "# Protobuf Python Version"


def test_the_stubs_describe_what_the_proto_files_say(tmp_path: Path) -> None:
    generate.run_protoc(f"--descriptor_set_out={tmp_path / 'set'}")
    made = {file.name: file for file in FileDescriptorSet.FromString((tmp_path / "set").read_bytes()).file}
    for module in (coordinator_pb2, peer_pb2):
        kept = type(next(iter(made.values()))).FromString(module.DESCRIPTOR.serialized_pb)
        fresh = made[module.DESCRIPTOR.name]
        for file in (kept, fresh):
            for message in file.message_type:
                for field in message.field:
                    field.ClearField("json_name")
        assert kept == fresh, "run `make proto`"


def test_the_files_in_the_tree_are_what_the_generator_writes() -> None:
    kept = {
        path.name: path.read_text() for path in (generate.ROOM / "generated").iterdir() if "_pb2" in path.name and path.is_file()
    }
    made = generate.generate()
    assert kept.keys() == made.keys()
    for name, content in made.items():
        version = [line for line in content.splitlines() if line.startswith(VERSION_LINE)]
        if not version or version[0] in kept[name]:
            assert kept[name] == content, f"{name} is stale: run `make proto`"


def test_the_stubs_do_not_demand_the_protobuf_of_the_protoc_that_made_them() -> None:
    for name, content in generate.generate().items():
        assert "runtime_version" not in content, name
