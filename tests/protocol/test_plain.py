"""Dataclasses as JSON and back: the journal's form."""

from __future__ import annotations

import enum
import json
import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.protocol.errors import LocalProtocolError, RemoteProtocolError
from shoal.protocol.messages import CatchUp, Commit, Contact, Decision, Envelope, Hello, Layout, Section, Span
from shoal.protocol.plain import from_plain, to_plain


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Leaf:
    number: int
    blob: bytes = b""


@dataclass(frozen=True)
class Twig:
    colour: Colour


@dataclass(frozen=True)
class Tree:
    name: str
    height: float
    alive: bool
    leaf: Leaf | None
    leaves: tuple[Leaf, ...] = ()
    mixed: tuple[Leaf | Twig, ...] = ()
    pair: tuple[int, str] = (0, "")
    words: frozenset[str] = frozenset()
    either: Leaf | Twig = Leaf(0)


TREE = Tree(
    "oak",
    2.5,
    True,
    Leaf(3, b"\x00\xff"),
    (Leaf(1), Leaf(2)),
    (Twig(Colour.BLUE), Leaf(4)),
    (7, "x"),
    frozenset({"b", "a"}),
    Twig(Colour.RED),
)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(to_plain(value), allow_nan=False))


def test_a_tree_comes_back_as_it_went_and_reads_as_it_should() -> None:
    plain = through_json(TREE)
    assert from_plain(Tree, plain) == TREE
    assert plain == {
        "type": "Tree",
        "name": "oak",
        "height": 2.5,
        "alive": True,
        "leaf": {"number": 3, "blob": "00ff"},
        "leaves": [{"number": 1, "blob": ""}, {"number": 2, "blob": ""}],
        "mixed": [{"type": "Twig", "colour": "blue"}, {"type": "Leaf", "number": 4, "blob": ""}],
        "pair": [7, "x"],
        "words": ["a", "b"],
        "either": {"type": "Twig", "colour": "red"},
    }


def test_a_union_is_found_by_its_tag() -> None:
    either: Any = Leaf | Twig
    assert from_plain(either, to_plain(Twig(Colour.RED))) == Twig(Colour.RED)
    with pytest.raises(RemoteProtocolError, match="unknown type 'Root'"):
        from_plain(either, {"type": "Root"})
    with pytest.raises(RemoteProtocolError, match="which kind"):
        from_plain(either, {"number": 3})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308, -0.0, 5e-324])
def test_every_float_survives_strict_json(value: float) -> None:
    tree = Tree("x", value, False, None)
    assert repr(from_plain(Tree, through_json(tree)).height) == repr(value)


def test_fields_with_a_default_may_be_absent_and_others_may_not() -> None:
    assert from_plain(Leaf, {"number": 5}) == Leaf(5)
    with pytest.raises(RemoteProtocolError, match="Leaf lacks 'number'"):
        from_plain(Leaf, {"blob": ""})


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (3, "Leaf expected, found int"),
        ({"number": 1, "colour": "red"}, "no field 'colour'"),
        ({"number": "1"}, "value.number: int expected, found str"),
        ({"number": True}, "value.number: int expected, found bool"),
        ({"number": 1.0}, "value.number: int expected, found float"),
        ({"number": 1, "blob": "0g"}, "not hexadecimal"),
        ({"number": 1, "blob": [1]}, "bytes expected, found list"),
        ({"type": "Twig", "number": 1}, "Leaf expected, found 'Twig'"),
    ],
)
def test_what_the_types_do_not_allow_is_refused_by_place(data: Any, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        from_plain(Leaf, data)


def test_the_place_of_a_nested_problem_is_named() -> None:
    plain = through_json(TREE)
    plain["mixed"][1]["number"] = None
    with pytest.raises(RemoteProtocolError, match=r"value\.mixed\[1\]\.number"):
        from_plain(Tree, plain)
    plain = through_json(TREE)
    plain["pair"] = [1]
    with pytest.raises(RemoteProtocolError, match=r"value\.pair: 2 items expected, found 1"):
        from_plain(Tree, plain)
    with pytest.raises(RemoteProtocolError, match="'green' is no Colour"):
        from_plain(Twig, {"colour": "green"})


def test_a_value_that_its_class_refuses_is_a_remote_error() -> None:
    with pytest.raises(RemoteProtocolError, match="empty or negative span"):
        from_plain(Span, {"start": 4, "stop": 4})


def test_what_has_no_plain_form_is_our_own_fault() -> None:
    with pytest.raises(LocalProtocolError, match="object has no plain form"):
        to_plain(object())


def test_messages_of_the_protocol_come_back_as_they_went() -> None:
    layout = Layout(bytes(32), 10, ())
    for body in (
        Hello("r", 1, 0, "i", 0, -1, b"", layout, ""),
        Hello("r", 1, 0, "i", 0, -1, b"", None, ""),
        CatchUp(
            (Commit(1, 2, 0, 0, 0, (Decision(Section.BUFFERS, 0, 0, bytes(32), ("p",), 1.5),), 5, 0.7, 0.9),), (Contact("p", ""),)
        ),
    ):
        envelope = Envelope(1, 2, body)
        assert from_plain(Envelope, through_json(envelope)) == envelope


@settings(max_examples=200)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*Tree.__dataclass_fields__, "type", "number", "colour", "other"]), inner, max_size=5)
        ),
        max_leaves=12,
    )
)
def test_any_json_is_a_value_or_a_remote_protocol_error(data: Any) -> None:
    try:
        value = from_plain(Tree, data)
    except RemoteProtocolError:
        return
    assert isinstance(value, Tree)
