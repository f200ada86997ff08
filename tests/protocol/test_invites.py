"""Invitations: one line that says all, or why it does not."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.protocol import invites
from shoal.protocol.authority import Authority
from shoal.protocol.errors import InviteError
from shoal.protocol.invites import Invite

CA = Authority.generate("shoal").ca_pem
INVITE = Invite(
    "shoal", ("run.example.org:50052", "[2001:db8::1]:50052"), ("run.example.org:50051",), CA, "s3cret-token_0123456789"
)
LINE = INVITE.line()


def test_an_invite_comes_back_as_it_went_in_one_plain_line() -> None:
    assert invites.parse(LINE) == INVITE
    assert LINE.isascii()
    assert len(LINE.split()) == 1
    assert len(LINE) < 1500
    assert not set(LINE) & set("'\"`$&;|<>()\\*?!#~ "), "nothing that a shell would touch"


def test_what_mail_and_chat_add_is_ignored() -> None:
    assert invites.parse(f"  {LINE}\n") == INVITE
    assert invites.parse("\r\n".join(LINE[i : i + 76] for i in range(0, len(LINE), 76))) == INVITE
    assert invites.parse(f'"{LINE}"') == INVITE
    assert invites.parse(f"`{LINE}`") == INVITE


def test_the_token_stays_out_of_logs() -> None:
    assert "s3cret" not in repr(INVITE)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", 'does not start with "shoal-invite-" — copy the whole line again'),
        ("https://example.org", "this is not an invite"),
        (LINE[5:], "this is not an invite"),
        ("shoal-invite-1", "cut off"),
        (LINE.replace("invite-1", "invite-2"), "version '2'; this program knows 1 — update shoal"),
        (LINE[:-1], "cut off"),
        (LINE[: len(LINE) // 2], "cut off"),
        (LINE[:80] + ("A" if LINE[80] != "A" else "B") + LINE[81:], "damaged or cut off"),
        (LINE[:80] + "%" + LINE[81:], "characters that do not belong there"),
        (LINE[:80] + "é" + LINE[81:], "characters that do not belong there"),
        ("shoal-invite-1.", "damaged or cut off"),
        (LINE + "A" * 20_000, "at most 16384 characters"),
    ],
)
def test_a_bad_line_is_refused_with_the_reason(line: str, problem: str) -> None:
    with pytest.raises(InviteError, match=problem):
        invites.parse(line)


def test_every_truncation_and_every_changed_character_is_noticed() -> None:
    for size in range(0, len(LINE), 7):
        with pytest.raises(InviteError):
            invites.parse(LINE[:size])
    start = LINE.index(".") + 1
    for place in range(start, len(LINE) - 1, 5):
        with pytest.raises(InviteError):
            invites.parse(LINE[:place] + ("A" if LINE[place] != "A" else "B") + LINE[place + 1 :])


def crafted(known: Any, ca: bytes = b"") -> str:
    """A line with a right checksum around any content."""
    text = known if isinstance(known, bytes) else json.dumps(known).encode()
    content = len(text).to_bytes(4, "little") + text + ca
    body = base64.urlsafe_b64encode(zlib.crc32(content).to_bytes(4, "little") + content).decode().rstrip("=")
    return f"shoal-invite-1.{body}"


CA_DER = base64.b64decode("".join(CA.decode().split("\n")[1:-2]))
GOOD = {"run": "shoal", "enrol": ["a:1"], "session": ["a:2"], "token": "t"}


def test_a_well_made_line_is_still_checked() -> None:
    assert invites.parse(crafted(GOOD, CA_DER)) == Invite("shoal", ("a:1",), ("a:2",), CA, "t")
    for known, problem in (
        ({**GOOD, "run": "../../etc"}, "is not the name of a run"),
        ({**GOOD, "run": 3}, "lacks its run"),
        ({**GOOD, "token": ""}, "no usable token"),
        ({**GOOD, "token": "a\nb"}, "no usable token"),
        ({**GOOD, "enrol": []}, "0 enrolment addresses"),
        ({**GOOD, "enrol": "a:1"}, "lacks its enrol addresses"),
        ({**GOOD, "session": ["unix:/x"]}, "session address is not usable: 'unix:/x' is not an address"),
        ({**GOOD, "session": ["a:1"] * 17}, "17 session addresses"),
        ([], "not readable"),
        (b"{", "not readable"),
        (b"[" * 5000, "not readable"),
    ):
        with pytest.raises(InviteError, match=problem):
            invites.parse(crafted(known, CA_DER))
    with pytest.raises(InviteError, match="not readable"):
        invites.parse(crafted(GOOD, CA_DER[:-1]))


@settings(max_examples=300)
@given(st.binary(max_size=200), st.binary(max_size=50))
def test_any_content_is_an_invite_or_an_invite_error(text: bytes, ca: bytes) -> None:
    with pytest.raises(InviteError):
        invites.parse(crafted(text, ca))


@given(st.text(max_size=60) | st.text(max_size=60).map(lambda text: f"shoal-invite-1.{text}"))
def test_any_text_is_an_invite_or_an_invite_error(text: str) -> None:
    with pytest.raises(InviteError):
        invites.parse(text)


def test_an_invite_that_could_not_work_cannot_be_made() -> None:
    for change in ({"enrol_addresses": ()}, {"run": "Run"}, {"ca_pem": b"x"}, {"token": "x" * 300}, {"session_addresses": ("x",)}):
        with pytest.raises(InviteError):
            replace(INVITE, **change)
