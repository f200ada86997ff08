"""The pages say what is so: generated parts are fresh, links lead somewhere, and every command that a page shows exists."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def generator() -> ModuleType:
    """docs/generate.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_lines(page: Path) -> Iterator[str]:
    """The lines of the page's shell blocks, continued ones joined."""
    for block in re.findall(r"^```(?:bash|sh|console)\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        yield from (line.strip() for line in block.replace("\\\n", " ").splitlines() if line.strip())


def shown_commands(page: Path, name: str) -> Iterator[str]:
    """Everything that the page shows as a command `name ...`: lines of shell blocks, and `inline code`."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for line in [*code_lines(page), *re.findall(r"`([^`\n]+)`", text)]:
        for piece in re.split(r"&&|\||;", line.split(" #")[0]):
            found = re.match(rf"^\s*(?:\$ )?(?:\.venv/bin/)?({name} .*)$", piece)
            if found:
                yield found.group(1).strip()


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_generated_parts_are_fresh(page: Path) -> None:
    assert generator().fresh(page) == page.read_text(), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("https://", "mailto:")):
            continue
        name, _, heading = target.partition("#")
        aim = (page.parent / name).resolve() if name else page
        if not aim.exists():
            broken.append(target)
        elif heading and aim.suffix == ".md":
            titles = re.findall(r"^#+ (.*)$", aim.read_text(), flags=re.MULTILINE)
            if heading not in {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}:
                broken.append(target)
    assert not broken, broken


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_files_that_a_page_names_exist(page: Path) -> None:
    """`room/file.py` and `room/` in a page are promises too."""
    named = re.findall(r"`((?:protocol|compression|optim|coordinator|peer|shoal|tests|docs|\.ci)/[\w./-]*)`", page.read_text())
    missing = [name for name in named if not re.search(r"\*|NAME", name) and not (ROOT / name).exists()]
    assert not missing, missing


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_make_targets_that_a_page_shows_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for line in shown_commands(page, "make"):
        for word in shlex.split(line)[1:]:
            assert "=" in word or word in targets | {"..."}, line


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_shoal_commands_that_a_page_shows_exist(page: Path) -> None:
    from shoal import cli

    for line in shown_commands(page, "shoal"):
        command: Any = typer.main.get_command(cli.app)
        words = shlex.split(re.sub(r"<[^>]*>", "X", line))[1:]
        while words and getattr(command, "commands", None) is not None and not words[0].startswith("-"):
            name = words.pop(0)
            if name in ("...", "COMMAND"):
                break
            assert name in command.commands, f"{line!r}: no command {name!r}"
            command = command.commands[name]
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        options |= {"--help", "-h", "-v", "--verbose"}
        for word in words:
            if word.startswith("-") and word not in ("-", "--"):
                assert word.split("=")[0] in options, f"{line!r}: no option {word}"
