"""Makes `generated/` from the .proto files: `python -m shoal.protocol.generate`. Needs grpcio-tools; running shoal does not.

Rule: what is in `generated/` is what this program writes (a test compares). One statement is left out of protoc's output: the check
that the installed protobuf is at least as new as the protoc used. The stubs hold a serialised descriptor and calls that every
supported protobuf understands; with the check, users would have to follow our protoc's version. gRPC's own stubs are not made:
`services` derives paths from the descriptors, and the serializers are ours.
"""

from __future__ import annotations

import importlib.resources
import re
import sys
import tempfile
from pathlib import Path

PROTOS = ("coordinator.proto", "peer.proto")
ROOM = Path(__file__).parent
IMPORT_PATH = "shoal/protocol"
"""Where protoc pretends the files lie, so that their names in the descriptor pool cannot clash with another package's."""

_VERSION_CHECK = re.compile(
    r"^from google\.protobuf import runtime_version as _runtime_version\n|^_runtime_version\.Validate\w+\(\n.*?^\)\n",
    re.MULTILINE | re.DOTALL,
)


def run_protoc(*arguments: str) -> None:
    """protoc on both files with these output arguments. Raises RuntimeError when it fails (it prints why)."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    well_known = importlib.resources.files("grpc_tools") / "_proto"
    files = [f"{IMPORT_PATH}/{name}" for name in PROTOS]
    if protoc.main(["protoc", f"-I{IMPORT_PATH}={ROOM}", f"-I{well_known}", *arguments, *files]) != 0:
        raise RuntimeError("protoc failed")


def generate() -> dict[str, str]:
    """File name to content, for every file that belongs into `generated/` besides its `__init__.py`."""
    with tempfile.TemporaryDirectory() as folder:
        run_protoc(f"--python_out={folder}", f"--pyi_out={folder}")
        made = sorted((Path(folder) / IMPORT_PATH).iterdir())
        return {path.name: _VERSION_CHECK.sub("", path.read_text()) for path in made}


def main() -> int:
    """Write the files and say so."""
    for name, content in generate().items():
        (ROOM / "generated" / name).write_text(content)
        print(f"generated/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
