"""From what an operator typed to a run spec: a file or flags, data files with their digests, and the settings that deserve a
remark.

Rule: pure but for reading the files it is given; what it decides for the operator it says in `remarks`. Neighbours:
`protocol.spec` validates, `command_coordinator` asks.
"""

from __future__ import annotations

import hashlib
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.failures import SettingsError
from shoal.protocol.errors import SpecError
from shoal.protocol.spec import RunSpec

DEFAULT_ROUNDS = 1000
FEW_ROUNDS = 200
"""Below this many planned rounds an outer momentum of 0.9 costs more at the start than it brings by the end (measured: 16
rounds 2.75 against 2.51 bits per byte, 40 rounds 2.32 against 2.16)."""
FEW_ROUNDS_MOMENTUM = 0.6
READ_BYTES = 1 << 20

Tables = dict[str, Any]
"""What a TOML file holds before it is checked: tables by name, if all is well."""


@dataclass(frozen=True)
class RunPlan:
    """A run spec, and what its operator should know about it."""

    spec: RunSpec
    rounds: int
    """Rounds that the run takes with the peers planned for."""
    peers: int
    """Peers planned for."""
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class DataFlags:
    """What the command line says about files beside their names."""

    url: str = ""
    """Address below which peers find the files; empty: they bring them."""
    tokenizer: Path | None = None


def from_flags(
    flags: Mapping[str, Mapping[str, Any]],
    files: Sequence[Path],
    rounds: int | None,
    peers: int | None,
    more: DataFlags = DataFlags(),
) -> RunPlan:
    """The plan that command-line flags describe; a flag that was not given is None and has the run spec's default."""
    tables: Tables = {name: given for name, table in flags.items() if (given := {k: v for k, v in table.items() if v is not None})}
    if rounds is not None and "total_tokens" in tables.get("run", {}):
        raise SettingsError("--rounds and --tokens both say how long the run is", "give one of them")
    return _plan(tables, files, rounds, peers, "run spec", more)


def from_file(path: Path, files: Sequence[Path], rounds: int | None, peers: int | None, more: DataFlags = DataFlags()) -> RunPlan:
    """The plan in a TOML file; data files and length may come from the command line where the file does not say them."""
    try:
        tables: Tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} cannot be read: {error}", "name a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path} is not valid TOML: {error}", "correct that line") from error
    if files and _get(tables, "data", "files"):
        raise SettingsError(f"--data and data.files in {path} both say what to train on", "drop one of them")
    if more.tokenizer is not None and _get(tables, "data", "tokenizer"):
        raise SettingsError(f"--tokenizer and data.tokenizer in {path} both say what tokens are", "drop one of them")
    if rounds is not None and _get(tables, "run", "total_tokens") is not None:
        raise SettingsError(f"--rounds and run.total_tokens in {path} both say how long the run is", "drop one of them")
    return _plan(tables, files, rounds, peers, str(path), more)


def _plan(tables: Tables, files: Sequence[Path], rounds: int | None, peers: int | None, name: str, more: DataFlags) -> RunPlan:
    remarks: list[str] = []
    tables = _with_files(tables, files, more)
    draft = _valid(_with(tables, "run", total_tokens=_get(tables, "run", "total_tokens") or 1), name)
    planned_peers = peers or draft.run.min_peers
    if planned_peers < draft.run.min_peers:
        raise SettingsError(
            f"--peers {planned_peers} is below the {draft.run.min_peers} peers without which the run waits",
            "raise --peers or lower --min-peers",
        )
    per_round = draft.tokens_per_round * planned_peers
    if _get(tables, "run", "total_tokens") is None:
        epoch = (draft.data.training_samples or 0) * draft.data.sequence_length
        needed = draft.data.epochs * epoch if draft.data.epochs and rounds is None else (rounds or DEFAULT_ROUNDS) * per_round
        tables = _with(tables, "run", total_tokens=max(1, needed))
    planned_rounds = math.ceil(_valid(tables, name).end_tokens / per_round)
    if planned_rounds < FEW_ROUNDS and _get(tables, "outer", "momentum") is None:
        tables = _with(tables, "outer", momentum=FEW_ROUNDS_MOMENTUM)
        remarks.append(
            f"note: outer momentum {FEW_ROUNDS_MOMENTUM} is written instead of 0.9, because {planned_rounds} rounds are planned: "
            f"0.9 learns more slowly below about {FEW_ROUNDS} rounds"
        )
    spec = _valid(tables, name)
    if spec.data.source == "stdlib":
        remarks.append(
            "warning: the run trains on Python's standard library, which differs between Python versions; "
            "it suits demos on one machine — give your own text with --data FILE..."
        )
    return RunPlan(spec, planned_rounds, planned_peers, tuple(remarks))


def _with_files(tables: Tables, files: Sequence[Path], more: DataFlags) -> Tables:
    """The tables with the files that the command line names, by path or, with an address, as what peers fetch."""
    paths, tokenizer = ([Path(os.path.abspath(path.expanduser())) for path in given] for given in (files, _one(more.tokenizer)))
    if more.url and not paths:
        raise SettingsError("--data-url says where the files of --data are to be had, but there are none", "name them with --data")
    if not paths and not tokenizer:
        return tables
    directory = _common_directory([*paths, *tokenizer])
    prefix = f"{more.url.rstrip('/')}/" if more.url else ""
    described = [
        described | {"path": prefix + described["path"]}
        for described in (describe_file(path, directory) for path in [*paths, *tokenizer])
    ]
    if paths:
        tables = _with(tables, "data", source="files", files=described[: len(paths)])
    return _with(tables, "data", tokenizer=described[len(paths) :]) if tokenizer else tables


def _one(path: Path | None) -> list[Path]:
    return [] if path is None else [path]


def _valid(tables: Tables, name: str) -> RunSpec:
    try:
        return RunSpec.of(**tables)
    except SpecError as error:
        raise SpecError(error.message.replace("run spec", name, 1), error.fix or "correct it") from error


def _get(tables: Tables, table: str, key: str) -> Any:
    section = tables.get(table, {})
    return section.get(key) if isinstance(section, dict) else None


def _with(tables: Tables, table: str, **values: Any) -> Tables:
    section = tables.get(table, {})
    return {**tables, table: {**section, **values}} if isinstance(section, dict) else tables


def _common_directory(files: Sequence[Path]) -> Path:
    try:
        return Path(os.path.commonpath([path.absolute().parent for path in files]))
    except ValueError as error:
        raise SettingsError("the data files lie on different drives", "put them below one directory") from error


def describe_file(path: Path, directory: Path) -> dict[str, Any]:
    """One entry of `data.files`: path below `directory`, SHA-256 and size of what the file holds now."""
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(READ_BYTES):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise SettingsError(f"--data {path}: {error.strerror}", "name readable text files") from error
    if size == 0:
        raise SettingsError(f"--data {path} is empty", "name files with text in them")
    return {"path": path.absolute().relative_to(directory).as_posix(), "sha256": digest.hexdigest(), "size": size}
