"""ARCHITECTURE.md as tests: who may import whom, which files do no I/O, and what must never appear in a source.

The rules are read from the syntax trees, so a late import inside a function counts like one at the top. What an import *loads* is
tested in fresh processes.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("protocol", "compression", "optim", "coordinator", "peer", "shoal")

PROTOCOL = {"grpc", "google", "cryptography", "pydantic"}
COMPRESSION = {"torch", "numpy", "zstandard"}
OPTIM = {"torch"}
COORDINATOR = {"sqlalchemy", "grpc", "google", "cryptography"}
PEER = PROTOCOL | COMPRESSION | OPTIM | {"safetensors", "psutil", "platformdirs", "fsspec"}
FRONT_DOOR = PEER | COORDINATOR | {"typer", "click", "rich", "prometheus_client"}

THIRD_PARTY = {
    "protocol": PROTOCOL,
    "compression": COMPRESSION,
    "optim": OPTIM,
    "coordinator": COORDINATOR,
    "peer": PEER,
    "shoal": FRONT_DOOR,
}
OTHER_ROOMS: dict[str, set[str]] = {
    "protocol": set(),
    "compression": set(),
    "optim": set(),
    "coordinator": {"protocol"},
    "peer": {"protocol", "compression", "optim"},
    "shoal": {"protocol", "compression", "optim", "coordinator", "peer"},
}

FOR_ALL = {"shoal.__version__"}
"""What every room may take from the front door."""

CORES = ("coordinator/core.py", "peer/engine.py")
PURE_ROOMS = ("compression", "optim")
BUILD_TIME_ONLY = {"protocol/generate.py": {"grpc_tools"}}
"""Files that only developers run, and what they need beyond their room's share."""

OUTSIDE_WORLD = {
    "asyncio",
    "concurrent",
    "datetime",
    "fcntl",
    "glob",
    "http",
    "io",
    "logging",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uuid",
    # and the libraries through which a core would reach it
    "fsspec",
    "grpc",
    "numpy",
    "platformdirs",
    "psutil",
    "rich",
    "sqlalchemy",
    "torch",
}
"""What a core may not import: every way to a clock, a file, a socket, a thread or chance."""
ALLOWED_IN_PURE_ROOMS = {"threading", "io", "sys", "torch", "numpy"}
"""The maths may hold scratch space per thread, may ask for the byte order, and is made of tensors."""

UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
UNSAFE_CALLS = {
    "eval",
    "exec",
    "torch.load",
    "torch.hub.load",
    "np.load",
    "numpy.load",
    "os.system",
    "os.popen",
    "yaml.load",
    "pd.read_pickle",
}
NAMES_WITHOUT_AN_IDEA = {"utils", "util", "common", "helpers", "helper", "misc"}


def sources(*rooms: str) -> list[Path]:
    """Every Python file of these rooms but the generated ones."""
    found = [path for room in rooms for path in sorted((ROOT / room).rglob("*.py")) if "generated" not in path.parts]
    assert found
    return found


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """(dotted module, line) of all that the file imports, wherever in it; `from shoal import peer` counts as `shoal.peer`."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            if module == "shoal":
                yield from ((f"shoal.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield module, node.lineno


def called(node: ast.Call) -> str:
    return ast.unparse(node.func)


def room_of(module: str) -> str:
    """The room that a module `shoal.…` lies in."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else "shoal"


def file_of(module: str) -> Path | None:
    """The source file of a module `shoal.…`, if it is one."""
    parts = module.split(".")[1:]
    base = ROOT / (Path(*parts) if parts and parts[0] in ROOMS else Path("shoal", *parts))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_the_table_allows(room: str) -> None:
    wrong = []
    for path in sources(room):
        extra = BUILD_TIME_ONLY.get(str(path.relative_to(ROOT)), set())
        for module, line in imports(path):
            top = module.split(".")[0]
            if top == "shoal":
                allowed = room_of(module) == room or room_of(module) in OTHER_ROOMS[room] or module in FOR_ALL
            else:
                allowed = top in sys.stdlib_module_names or top in THIRD_PARTY[room] | extra
            if not allowed:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {module}")
    assert not wrong, "\n".join(wrong)


def closure(start: Path) -> set[Path]:
    """The file and everything of its own room that it imports, directly or not."""
    room = start.relative_to(ROOT).parts[0]
    seen: set[Path] = set()
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for module, _ in imports(path):
            found = file_of(module) if module.startswith("shoal.") and room_of(module) == room else None
            if found is not None:
                waiting.append(found)
    return seen


@pytest.mark.parametrize("core", CORES)
def test_a_core_and_what_it_is_made_of_reaches_no_clock_file_socket_thread_or_chance(core: str) -> None:
    wrong = []
    for path in closure(ROOT / core):
        for module, line in imports(path):
            if module.split(".")[0] in OUTSIDE_WORLD:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: imports {module}")
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and called(node) in {"open", "print", "input", "breakpoint", "__import__"}:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: calls {called(node)}")
            if isinstance(node, ast.AsyncFunctionDef | ast.Await):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: async")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_the_maths_does_no_input_or_output(room: str) -> None:
    wrong = []
    for path in sources(room):
        if path == ROOT / "compression" / "__init__.py":
            continue  # must find the standard library's folder to step aside
        for module, line in imports(path):
            if module.split(".")[0] in OUTSIDE_WORLD - ALLOWED_IN_PURE_ROOMS:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: imports {module}")
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and called(node) in {"open", "print", "input", "torch.save", "torch.manual_seed"}:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: calls {called(node)}")
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "sys" and node.attr != "byteorder":
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: uses sys.{node.attr}")
    assert not wrong, "\n".join(wrong)


def test_nothing_deserialises_code() -> None:
    wrong = []
    for path in sources(*ROOMS):
        for module, line in imports(path):
            if module.split(".")[0] in UNSAFE_MODULES:
                wrong.append(f"{path.relative_to(ROOT)}:{line}: imports {module}")
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call):
                shell = any(word.arg == "shell" and not is_false(word.value) for word in node.keywords)
                if called(node) in UNSAFE_CALLS or shell:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: calls {called(node)}")
    assert not wrong, "\n".join(wrong)


def is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def test_torch_optim_is_written_in_full() -> None:
    wrong = []
    for path in sources(*ROOMS):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module == "torch" and any(alias.name == "optim" for alias in node.names):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not wrong, "\n".join(wrong)


def test_every_file_is_named_after_an_idea() -> None:
    folders = [*ROOMS, "tests", "examples"]
    named = [
        path
        for folder in folders
        if (ROOT / folder).exists()
        for path in (ROOT / folder).rglob("*")
        if "__pycache__" not in path.parts
    ]
    wrong = [str(path.relative_to(ROOT)) for path in named if path.stem in NAMES_WITHOUT_AN_IDEA]
    assert not wrong, wrong


def test_every_module_and_public_class_says_what_it_is() -> None:
    wrong = []
    for path in sources(*ROOMS):
        tree = tree_of(path)
        if not ast.get_docstring(tree):
            wrong.append(f"{path.relative_to(ROOT)}: module")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not ast.get_docstring(node):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: class {node.name}")
    assert not wrong, "\n".join(wrong)


# --- the page that says it ------------------------------------------------------------------------------------------------------


def test_architecture_page_has_the_same_table() -> None:
    """Each row `| `room/` | holds | may import |` names exactly the rooms that OTHER_ROOMS allows, and each third-party package."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    for room in ROOMS:
        row = re.search(rf"^\| `{room}/` \|.*\|(.*)\|$", page, flags=re.MULTILINE)
        assert row, f"no row for {room}/"
        words = set(re.findall(r"`([a-z_0-9]+)/?`", row.group(1)))
        assert words & set(ROOMS) == OTHER_ROOMS[room], room
        shown = {"google": "protobuf"}
        third_party = {shown.get(name, name) for name in THIRD_PARTY[room]} - {"click"}
        if room not in ("peer", "shoal"):  # their rows say "what those may, and ..."
            assert words - set(ROOMS) == third_party, room
        else:
            assert words - set(ROOMS) <= third_party, room


# --- what an import loads -------------------------------------------------------------------------------------------------------


def in_a_fresh_process(code: str, *, cwd: Path | None = None) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=cwd or ROOT / "docs")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def modules(room: str) -> list[str]:
    """Dotted names of a room's modules."""
    names = []
    for path in sources(room):
        relative = path.relative_to(ROOT).with_suffix("")
        parts = relative.parts[:-1] if relative.name == "__init__" else relative.parts
        names.append(".".join(parts if room == "shoal" else ("shoal", *parts)))
    return names


@pytest.mark.parametrize("room", ["protocol", "coordinator"])
def test_a_room_without_tensors_loads_no_torch(room: str) -> None:
    needed = [name for name in modules(room) if name != "shoal.protocol.generate" and not name.endswith("__main__")]
    in_a_fresh_process(
        "import importlib, sys\n"
        f"for name in {needed}: importlib.import_module(name)\n"
        "loaded = {'torch', 'numpy', 'safetensors'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )


@pytest.mark.parametrize(
    "arguments", [["--help"], ["admin", "--help"], ["coordinator", "--help"], ["peer", "join", "--help"], ["demo", "--help"]]
)
def test_help_answers_without_loading_torch(arguments: list[str]) -> None:
    output = in_a_fresh_process(
        "import sys\n"
        "from shoal.cli import main\n"
        f"sys.argv = ['shoal', *{arguments}]\n"
        "try: code = main()\n"
        "except SystemExit as stop: code = stop.code\n"
        "assert not code, code\n"
        "heavy = {'torch', 'numpy', 'sqlalchemy', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    assert "Usage" in output


def test_import_shoal_is_light() -> None:
    in_a_fresh_process(
        "import sys, shoal\nheavy = {'torch', 'grpc', 'sqlalchemy', 'typer'} & set(sys.modules)\nassert not heavy, heavy"
    )


# --- a folder with the name of a standard package -------------------------------------------------------------------------------


def test_our_compression_steps_aside_when_it_is_imported_as_the_plain_name() -> None:
    """Python 3.14 has a package `compression`, which gzip needs; a checkout on sys.path would shadow it."""
    standard = str(Path(sysconfig.get_path("stdlib"), "compression"))
    output = in_a_fresh_process(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import compression, gzip, bz2, lzma, zlib\n"
        f"assert compression.__file__.startswith({str(ROOT)!r}), compression.__file__\n"
        "assert 'torch' not in sys.modules\n"
        "public = [name for name in vars(compression) if not name.startswith('_')]\n"
        "print(list(compression.__path__), gzip.decompress(gzip.compress(b'fish')))\n"
    )
    assert output.strip() == f"{[standard]!r} {b'fish'!r}"


def test_our_compression_is_itself_under_its_full_name() -> None:
    output = in_a_fresh_process("import shoal.compression as room; print(*room.__path__)")
    assert Path(output.strip()) == ROOT / "compression"
