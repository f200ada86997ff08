"""The wheel is the product: it is built from this checkout, installed into a fresh environment, and used from somewhere else."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("protocol", "compression", "optim", "coordinator", "peer")

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, cwd=cwd)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel made from the files that git knows, as a release would be."""
    sources, built = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("built")
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for name in listed:
        if (ROOT / name).is_file():
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            (sources / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", built, sources)
    (found,) = built.glob("shoal-*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment that holds the wheel, and sees this one's other packages but not this checkout."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    borrowed = [entry for entry in sys.path if entry.endswith("site-packages")]
    (site_packages,) = folder.glob("lib/python*/site-packages")
    # A .pth line adds a folder to the path without reading that folder's own .pth files, among which is our editable install.
    (site_packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return folder


def test_wheel_holds_every_source_file_and_nothing_else(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", *ROOMS, "shoal", cwd=ROOT).splitlines()
    wanted = set()
    for name in listed:
        if (ROOT / name).is_file() and name.endswith((".py", ".pyi", ".proto", "py.typed")):
            wanted.add(name if name.startswith("shoal/") else f"shoal/{name}")
    assert wanted - inside == set(), "missing from the wheel"
    assert inside - wanted == set(), "only in the wheel"


def test_every_module_of_the_wheel_imports_from_another_folder(environment: Path, wheel: Path, tmp_path: Path) -> None:
    names = []
    for name in sorted(zipfile.ZipFile(wheel).namelist()):
        path = Path(name)
        if path.suffix == ".py" and path.parts[0] == "shoal" and path.stem not in ("__main__", "generate"):
            names.append(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
    code = (
        "import importlib\n"
        f"for name in {names}:\n"
        f"    module = importlib.import_module(name)\n"
        f"    assert module.__file__.startswith({str(environment)!r}), module.__file__\n"
        "import gzip\n"
        "print('all there')\n"
    )
    assert run(environment / "bin" / "python", "-c", code, cwd=tmp_path).strip() == "all there"


def test_the_installed_command_answers(environment: Path, tmp_path: Path) -> None:
    output = run(environment / "bin" / "shoal", "--help", cwd=tmp_path)
    assert "Usage" in output
    for command in ("demo", "coordinator", "peer", "admin"):
        assert command in output


def test_the_installed_command_fails_with_one_line_and_a_non_zero_code(environment: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [environment / "bin" / "shoal", "peer", "join", "this-is-no-invite"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr + done.stdout
    assert len([line for line in done.stderr.splitlines() if line.strip()]) == 1, done.stderr
