"""Writes the parts of the pages that come from the sources: `make docs`. tests/test_docs.py fails when a page is out of date.

Such a part stands between `<!-- generated: NAME -->` and `<!-- end -->`; everything around it is written by hand.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer.main

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """Every page that may hold generated parts."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def fresh(page: Path) -> str:
    """The page's text with every generated part made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{GENERATORS[found[2]]().strip()}\n\n{found[4]}", page.read_text(encoding="utf-8"))


def cell(text: str | None) -> str:
    """Text that fits into a table's cell."""
    return " ".join((text or "").split()).replace("|", "\\|")


# --- the run spec ---------------------------------------------------------------------------------------------------------------


def run_spec() -> str:
    """One table per section: key, default, allowed values, meaning."""
    from shoal.protocol import spec

    lines = []
    for name, field in spec.RunSpec.model_fields.items():
        section: Any = field.annotation
        lines += [f"## [{name}]", "", cell(section.__doc__), "", "| key | default | allowed | meaning |", "|---|---|---|---|"]
        for key, item in section.model_fields.items():
            default = "**required**" if item.is_required() else f"`{toml(item.default)}`"
            lines.append(f"| `{item.alias or key}` | {default} | {allowed(item)} | {cell(item.description)} |")
        lines.append("")
    lines += ["## Entries of data.files", "", cell(spec.DataFile.__doc__), "", "| key | meaning |", "|---|---|"]
    lines += [f"| `{key}` | {cell(item.description)} |" for key, item in spec.DataFile.model_fields.items()]
    return "\n".join(lines)


def toml(value: Any) -> str:
    """A default as it is written in the file."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case tuple():
            return "[]"
        case _:
            return repr(value)


def allowed(field: Any) -> str:
    """The type and the limits of a field, in words."""
    if field.annotation is bool:
        return "`true`, `false`"
    choices = typing.get_args(field.annotation) if typing.get_origin(field.annotation) is typing.Literal else ()
    if choices:
        return ", ".join(f'`"{choice}"`' for choice in choices)
    limits = {type(item).__name__: item for item in limits_of(field)}
    words = []
    if "Ge" in limits:
        upper = f" to {number(limits['Le'].le)}" if "Le" in limits else " or more"
        words.append(number(limits["Ge"].ge) + upper)
    if "Gt" in limits:
        words.append(f"above {number(limits['Gt'].gt)}")
    if "Le" in limits and "Ge" not in limits:
        words.append(f"at most {number(limits['Le'].le)}")
    if "Lt" in limits:
        words.append(f"below {number(limits['Lt'].lt)}")
    kinds = {int: "whole number", float: "number", str: "text"}
    return " ".join([kinds.get(field.annotation, "list"), ", ".join(words)]).strip()


def limits_of(field: Any) -> Iterator[Any]:
    """Pydantic keeps a field's limits in `metadata`, those of a named type one level deeper."""
    for item in field.metadata:
        yield from getattr(item, "metadata", None) or [item]


def number(value: float) -> str:
    """A limit; powers of two as such."""
    if isinstance(value, int) and value > 4096 and value & (value - 1) == 0:
        return f"2^{value.bit_length() - 1}"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


# --- messages and states --------------------------------------------------------------------------------------------------------


def messages_from_peer() -> str:
    """What a peer says to the coordinator."""
    from shoal.protocol import messages

    return message_table(messages.FromPeer)


def messages_from_coordinator() -> str:
    """What the coordinator says to a peer."""
    from shoal.protocol import messages

    return message_table(messages.FromCoordinator)


def message_table(union: Any) -> str:
    """Message, sentence, fields."""
    lines = ["| message | says | fields |", "|---|---|---|"]
    for kind in typing.get_args(union):
        fields = ", ".join(f"`{field.name}`" for field in dataclasses.fields(kind))
        lines.append(f"| `{kind.__name__}` | {cell(kind.__doc__)} | {fields} |")
    return "\n".join(lines)


def round_states() -> str:
    """The coordinator's states of a round."""
    from shoal.coordinator import rounds

    return state_table(rounds.RoundState, rounds.TRANSITIONS)


def state_table(states: type[enum.Enum], transitions: Mapping[Any, Any]) -> str:
    """Every state, what it means and what may follow."""
    says = member_docs(states)
    documented = any(says.values())
    lines = ["| state | " + ("means | " if documented else "") + "may become |", "|---|" + ("---|" if documented else "") + "---|"]
    for state in states:
        following = (
            ", ".join(f"`{other.value}`" for other in states if other in transitions.get(state, ())) or "nothing: it is final"
        )
        lines.append(f"| `{state.value}` | " + (f"{cell(says.get(state.name))} | " if documented else "") + f"{following} |")
    return "\n".join(lines)


def member_docs(kind: type) -> dict[str, str]:
    """The strings that stand under the members of a class, as its source has them."""
    (body,) = [node for node in ast.walk(ast.parse(inspect.getsource(kind))) if isinstance(node, ast.ClassDef)]
    docs = {}
    for node, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(node, ast.Assign) and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            target = node.targets[0]
            if isinstance(target, ast.Name):
                docs[target.id] = str(following.value.value)
    return docs


# --- the command ----------------------------------------------------------------------------------------------------------------


def metrics_of_a_peer() -> str:
    """What a peer shows to Prometheus."""
    from shoal import metrics

    return metric_table((number.name, number.kind, number.labels, number.text) for number in metrics.PEER)


def metrics_of_a_coordinator() -> str:
    """What a coordinator shows to Prometheus."""
    from shoal import metrics

    return metric_table((number.name, number.kind, number.labels, number.text) for number in metrics.COORDINATOR)


def metrics_of_both() -> str:
    """What both show."""
    from shoal import metrics

    return metric_table([(metrics.LAG_NAME, "histogram", (), metrics.LAG_TEXT)])


def metric_table(rows: Iterable[tuple[str, str, Sequence[str], str]]) -> str:
    """Name, kind, labels, meaning."""
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for name, kind, labels, text in rows:
        lines.append(f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {cell(text)} |")
    return "\n".join(lines)


def exit_codes() -> str:
    """What the exit code of a command means."""
    from shoal.failures import ExitCode

    says = member_docs(ExitCode)
    return "\n".join(["| code | means |", "|---|---|", *(f"| {int(code)} | {cell(says[code.name])} |" for code in ExitCode)])


def commands() -> str:
    """Every command with its one sentence."""
    from shoal import cli

    lines = ["| command | does |", "|---|---|"]
    lines += [
        f"| `{path}` | {cell(first_sentence(command.help))} |" for path, command in leaves("shoal", typer.main.get_command(cli.app))
    ]
    return "\n".join(lines)


def leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """(words, command) of everything that can be run; hidden ones left out."""
    inner = getattr(command, "commands", None)
    if not inner:
        words = [
            (part.metavar or part.name.upper()) for part in command.params if part.param_type_name == "argument" and not part.hidden
        ]
        yield " ".join([path, *words]), command
        return
    for name, child in inner.items():
        if not child.hidden:
            yield from leaves(f"{path} {name}", child)


def first_sentence(text: str | None) -> str:
    """Up to the first full stop."""
    return re.split(r"(?<=\.)\s", " ".join((text or "").split()), maxsplit=1)[0]


GENERATORS: dict[str, Callable[[], str]] = {
    "run-spec": run_spec,
    "messages-from-peer": messages_from_peer,
    "messages-from-coordinator": messages_from_coordinator,
    "round-states": round_states,
    "metrics-of-a-peer": metrics_of_a_peer,
    "metrics-of-a-coordinator": metrics_of_a_coordinator,
    "metrics-of-both": metrics_of_both,
    "exit-codes": exit_codes,
    "commands": commands,
}


def main() -> int:
    """Rewrites the pages that are out of date, and names them."""
    for page in pages():
        text = fresh(page)
        if text != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
