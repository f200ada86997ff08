"""What an operator may change of a run spec while the run goes on.

Rule: only what the coordinator alone acts on can be changed; whatever peers compute with (model, data, optimizers, codecs) is
fixed for a run's whole life, and so is the course of the learning rate, which follows the total that the run began with. The
changed spec passes the same checks as a new one. Neighbours: `core` journals a change, `ledger` keeps them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from shoal.protocol.admin import AdminError, RunSettings, SettingView
from shoal.protocol.errors import SpecError
from shoal.protocol.spec import RunSpec

CHANGEABLE = (
    "run.min_peers",
    "run.total_tokens",
    "round.seconds",
    "round.samples",
    "round.quorum",
    "evaluation.every",
    "timing.grace_s",
    "timing.gather_s",
    "timing.reduce_s",
    "timing.part_s",
    "timing.delivery_s",
    "timing.join_wait_s",
)


def changed(spec: RunSpec, settings: Mapping[str, str]) -> RunSpec:
    """`spec` with these settings (key to TOML value) instead of its own. Raises SpecError."""
    tables = {name: dict(table) for name, table in spec.model_dump(mode="json", by_alias=True).items()}
    for key, value in settings.items():
        table, _, name = key.partition(".")
        tables[table][name] = _parsed(key, value)
    return RunSpec.of(**tables)


def why_not(spec: RunSpec, settings: Mapping[str, str], key: str, value: str, committed_tokens: int) -> AdminError | None:
    """Why `key` cannot be set to `value` now, `settings` being what was changed before; None: it can."""
    if key not in CHANGEABLE:
        fixed = any(
            key == f"{name}.{inner}" for name in RunSpec.model_fields for inner in getattr(spec, name).model_dump(by_alias=True)
        )
        reason = f"{key} is fixed for this run" if fixed else f"there is no setting {key!r:.80}"
        return AdminError(reason, f"these can be changed: {', '.join(CHANGEABLE)}")
    try:
        wanted = changed(spec, {**settings, key: value})
    except SpecError as error:
        return AdminError(error.message.removeprefix("run spec: "), error.fix or "`shoal admin set` lists what is set to what")
    if key == "run.total_tokens" and wanted.run.total_tokens <= committed_tokens:
        return AdminError(f"{committed_tokens} tokens are trained already", "end the run with `shoal admin stop`")
    return None


def listed(spec: RunSpec, settings: Mapping[str, str]) -> RunSettings:
    """Every setting that can be changed, with what it is, was at the beginning, and means."""
    rows = []
    for key in CHANGEABLE:
        table, _, name = key.partition(".")
        initial = str(getattr(getattr(spec, table), name))
        meaning = " ".join((type(getattr(spec, table)).model_fields[name].description or "").split())
        rows.append(SettingView(key, settings.get(key, initial), initial, meaning))
    return RunSettings(tuple(rows))


def _parsed(key: str, value: str) -> Any:
    """One TOML value: a number."""
    try:
        parsed = tomllib.loads(f"value = {value.strip()}") if "\n" not in value else {}
    except tomllib.TOMLDecodeError:
        parsed = {}
    number = parsed.get("value")
    if len(parsed) != 1 or isinstance(number, bool) or not isinstance(number, int | float):
        raise SpecError(f"{key}: {value!r:.80} is not a number")
    return number
