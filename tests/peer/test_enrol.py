"""The peer's way in and its certificates: what is kept, what is asked for, and when, from a real registry over real TLS."""

from __future__ import annotations

import asyncio
import datetime
import random
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from shoal.coordinator.enrolment import CERTIFICATE_LIFETIME, Addresses, Registry
from shoal.coordinator.journal import Journal, journal_url
from shoal.peer import diagnosis
from shoal.peer import enrol as enrol_module
from shoal.peer.enrol import Credentials, Keeper, come_in, enrol, enrolled_in, load
from shoal.protocol.authority import Authority, coordinator_name
from shoal.protocol.channels import Kind, join_address, listen, new_server
from shoal.protocol.enrolment import Enrol, Enrolled, Renew
from shoal.protocol.errors import IdentityError, ShoalError, UnreachableError
from shoal.protocol.files import write_whole
from shoal.protocol.identity import Identity
from shoal.protocol.invites import Invite
from shoal.protocol.services import ENROL, RENEW, handlers
from shoal.protocol.tls import Credential, caller_of, server_credentials


@dataclass
class Desk:
    """An enrolment desk without a run behind it; counts what it is asked."""

    registry: Registry
    invite: Invite
    authority: Authority
    enrolments: list[Enrol] = field(default_factory=list)
    renewals: list[Renew] = field(default_factory=list)
    answer: Enrolled | None = None
    """What it says instead of the truth."""

    async def enrol(self, request: Enrol, _context: object) -> Enrolled:
        self.enrolments.append(request)
        return self.answer or self.registry.enrol(request)

    async def renew(self, request: Renew, context: object) -> Enrolled:
        self.renewals.append(request)
        return self.answer or self.registry.renew(request, caller_of(context).peer)


@asynccontextmanager
async def desk(tmp_path: Path, lifetime: datetime.timedelta = CERTIFICATE_LIFETIME) -> AsyncIterator[Desk]:
    authority = Authority.generate("demo")
    own = Identity.generate()
    certificate = authority.issue(own.tls_public_key, coordinator_name("demo"), {"coordinator"}, datetime.timedelta(hours=1))
    credential = Credential(own.tls_key_pem, certificate, authority.ca_pem)
    newcomers, members = new_server(Kind.ENROLMENT), new_server(Kind.SESSION)
    ports = (
        listen(newcomers, "127.0.0.1:0", server_credentials(credential, ask_for_certificate=False)),
        listen(members, "127.0.0.1:0", server_credentials(credential)),
    )
    enrolment, session = (join_address("127.0.0.1", port) for port in ports)
    journal = Journal.open(journal_url(tmp_path / "desk.db"))
    registry = Registry(authority, journal, Addresses((enrolment,), (session,)), lifetime)
    one = Desk(registry, registry.invite(5, 1.0, "test"), authority)
    newcomers.add_generic_rpc_handlers(handlers(ENROL.serve(one.enrol)))
    members.add_generic_rpc_handlers(handlers(RENEW.serve(one.renew)))
    await newcomers.start()
    await members.start()
    try:
        yield one
    finally:
        await newcomers.stop(0)
        await members.stop(0)
        journal.close()


def with_certificate(known: Credentials, authority: Authority, begins_h: float, ends_h: float) -> Credentials:
    """The same credentials with a certificate that begins and ends so many hours from now, saved."""
    now = datetime.datetime.now(datetime.UTC)
    certificate = authority.issue(
        known.identity.tls_public_key,
        known.peer,
        {"peer"},
        datetime.timedelta(hours=ends_h - begins_h),
        now + datetime.timedelta(hours=begins_h),
    )
    changed = replace(known, credential=replace(known.credential, certificate=certificate))
    changed.save()
    return changed


async def test_credentials_are_kept_and_load_as_they_were(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        made = await enrol(one.invite, tmp_path / "p")
    kept = load(tmp_path / "p")
    assert (kept.run, kept.peer, kept.credential, kept.session_addresses) == (
        "demo",
        made.peer,
        made.credential,
        one.invite.session_addresses,
    )
    for file in (tmp_path / "p").iterdir():
        assert file.stat().st_mode & 0o077 == 0


async def test_a_valid_certificate_is_used_without_asking_anybody(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        await come_in(tmp_path / "p", one.invite)
    moved = replace(one.invite, session_addresses=("elsewhere:1",), token="another")
    again = await come_in(tmp_path / "p", moved)
    assert again.session_addresses == ("elsewhere:1",)
    assert load(tmp_path / "p").session_addresses == ("elsewhere:1",)
    assert (await come_in(tmp_path / "p", None)).session_addresses == ("elsewhere:1",)
    assert len(one.enrolments) == 1


@pytest.mark.parametrize(("begins_h", "ends_h"), [(-48, -24), (-20, 4), (24, 48)], ids=["ended", "nearly ended", "from the future"])
async def test_a_certificate_that_is_not_good_for_a_while_is_replaced_with_no_invite_at_all(
    tmp_path: Path, begins_h: float, ends_h: float
) -> None:
    async with desk(tmp_path) as one:
        first = await come_in(tmp_path / "p", one.invite)
        with_certificate(first, one.authority, begins_h, ends_h)
        second = await come_in(tmp_path / "p", None)
        second.check()
        assert second.peer == first.peer
        assert len(one.enrolments) == 2


async def test_a_certificate_that_grows_old_does_while_the_coordinator_is_away(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        old = with_certificate(await come_in(tmp_path / "p", one.invite), one.authority, -20, 4)
    for invite in (None, one.invite):
        assert (await come_in(tmp_path / "p", invite)).credential == old.credential
    with_certificate(old, one.authority, -20, -1)
    with pytest.raises(UnreachableError):
        await come_in(tmp_path / "p", None)


def test_a_directory_that_says_nonsense_about_its_run_is_refused(tmp_path: Path) -> None:
    for content, complaint in (
        ('{"run": "demo"}', "is damaged"),
        ('{"run": "../x", "enrol_addresses": [], "session_addresses": []}', "names no run"),
    ):
        write_whole(tmp_path / "run.json", content.encode())
        with pytest.raises(IdentityError, match=complaint):
            load(tmp_path)


async def test_a_certificate_that_cannot_be_kept_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    async with desk(tmp_path) as one:
        made = await enrol(one.invite, tmp_path / "p")
    monkeypatch.setattr(enrol_module, "write_whole", full)
    with pytest.raises(IdentityError, match="cannot be kept in .*: No space left on device"):
        made.save()


async def test_an_identity_that_this_coordinator_does_not_know_needs_an_invite(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        stranger = Identity.create(tmp_path / "p")
        begun = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=50)
        certificate = one.authority.issue(stranger.tls_public_key, stranger.peer_id, {"peer"}, datetime.timedelta(hours=1), begun)
        credential = Credential(stranger.tls_key_pem, certificate, one.authority.ca_pem)
        addresses = (one.invite.enrol_addresses, one.invite.session_addresses)
        Credentials("demo", stranger, credential, *addresses, tmp_path / "p").save()
        with pytest.raises(ShoalError):
            await come_in(tmp_path / "p", None)
        assert (await come_in(tmp_path / "p", one.invite)).peer == stranger.peer_id


async def test_an_identity_of_another_run_is_not_mixed_up(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        await come_in(tmp_path / "p", one.invite)
        with pytest.raises(IdentityError, match="holds an identity of run 'demo', the invite is for 'other'"):
            await come_in(tmp_path / "p", replace(one.invite, run="other"))


async def test_a_coordinator_that_certifies_somebody_else_is_not_believed(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        other = await enrol(one.invite, tmp_path / "other")
        one.answer = Enrolled(other.peer, other.credential.certificate.decode(), other.ca, one.invite.session_addresses)
        with pytest.raises(IdentityError, match=f"certified '{other.peer}' instead of"):
            await enrol(one.invite, tmp_path / "p")
        assert not enrolled_in(tmp_path / "p")


@pytest.mark.parametrize("name", ["run.json", "identity.pem", "tls-key.pem", "certificate.pem", "ca.pem"])
@pytest.mark.parametrize("content", [b"garbage", None], ids=["damaged", "gone"])
async def test_a_damaged_directory_is_one_sentence_with_the_way_out(tmp_path: Path, name: str, content: bytes | None) -> None:
    async with desk(tmp_path) as one:
        await enrol(one.invite, tmp_path / "p")
    if name == "run.json" and content is None:
        return  # then it holds no credentials at all
    (tmp_path / "p" / name).unlink()
    if content is not None:
        (tmp_path / "p" / name).write_bytes(content)
        (tmp_path / "p" / name).chmod(0o600)
    with pytest.raises(IdentityError, match=rf"{re.escape(name)}.* — remove the directory and join with an invite"):
        await come_in(tmp_path / "p", None)


async def test_a_certificate_is_due_when_two_thirds_of_its_life_are_over(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        known = await enrol(one.invite, tmp_path / "p")
        due = with_certificate(known, one.authority, -4, 5)
    assert abs(due.renew_at - (time.time() + 2 * 3600)) < 5


async def test_the_keeper_renews_with_the_old_certificate_and_keeps_the_new_one(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        due = with_certificate(await enrol(one.invite, tmp_path / "p"), one.authority, -3, 1)
        told: list[str] = []
        keeper = Keeper(due, told.append)
        await until_renewed(keeper, due)
        keeper.current().check()
        assert load(tmp_path / "p").credential == keeper.credential()
        assert len(one.renewals) == 1
        assert len(one.enrolments) == 1
        assert told == []


async def test_the_keeper_enrols_anew_when_the_certificate_has_ended(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        ended = with_certificate(await enrol(one.invite, tmp_path / "p"), one.authority, -30, -6)
        keeper = Keeper(ended, lambda text: None)
        await until_renewed(keeper, ended)
        keeper.current().check()
        assert (len(one.renewals), len(one.enrolments)) == (0, 2)


async def test_a_renewal_that_fails_is_told_once_and_tried_until_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrol_module, "RETRY_S", (0.01, 0.02))
    async with desk(tmp_path) as one:
        due = with_certificate(await enrol(one.invite, tmp_path / "p"), one.authority, -3, 1)
        one.answer = Enrolled("f" * 32, due.credential.certificate.decode(), due.ca, due.session_addresses)
        told: list[str] = []
        keeper = Keeper(due, told.append, random.Random(1))
        running = asyncio.create_task(keeper.run())
        async with asyncio.timeout(10):
            while len(one.renewals) < 3:
                await asyncio.sleep(0.01)
            assert keeper.current() is due
            one.answer = None
            while keeper.current() is due:
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert len(told) == 2
    assert told[0].startswith("cannot renew the certificate yet: the coordinator certified")
    assert told[1] == "the certificate is renewed"


async def until_renewed(keeper: Keeper, old: Credentials) -> None:
    running = asyncio.create_task(keeper.run())
    async with asyncio.timeout(10):
        while keeper.current() is old:
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_short_certificates_are_due_at_two_thirds_of_what_is_left_of_them_too(tmp_path: Path) -> None:
    async with desk(tmp_path, lifetime=datetime.timedelta(seconds=24)) as one:
        asked_at = time.time()
        known = await enrol(one.invite, tmp_path / "p")
    assert 13 <= known.renew_at - asked_at <= 17


async def test_a_clock_far_ahead_does_not_make_the_keeper_ask_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(tmp_path) as one:
        known = await enrol(one.invite, tmp_path / "p")
        monkeypatch.setattr(enrol_module, "time", Clock(20 * 3600.0))
        keeper = Keeper(known, lambda text: None)
        await until_renewed(keeper, known)
        running = asyncio.create_task(keeper.run())
        await asyncio.sleep(1.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert len(one.renewals) <= 3


class Clock:
    """The wall clock of a machine that is wrong by so many seconds."""

    def __init__(self, ahead_s: float) -> None:
        self._ahead_s = ahead_s

    def time(self) -> float:
        return time.time() + self._ahead_s


@pytest.mark.parametrize(("ahead_s", "words"), [(1200.0, "1200 s ahead of"), (-1200.0, "1200 s behind")])
async def test_a_clock_that_is_wrong_is_said_with_both_times_and_does_not_keep_anybody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ahead_s: float, words: str
) -> None:
    async with desk(tmp_path) as one:
        with caplog.at_level("WARNING", "shoal.peer"):
            await enrol(one.invite, tmp_path / "right")
            assert not caplog.messages
            monkeypatch.setattr(enrol_module, "time", Clock(ahead_s))
            (await enrol(one.invite, tmp_path / "wrong")).check()
    [said] = caplog.messages
    assert re.fullmatch(rf"this machine's clock says .* UTC, {words} the coordinator's, which says .* UTC: set it right", said), (
        said
    )


async def test_a_clock_that_is_wrong_by_days_is_refused_with_the_times_of_both_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as one:
        monkeypatch.setattr(diagnosis, "time", Clock(-3 * 86400.0))
        both = r"valid from .* UTC, but this machine's clock says .* UTC; the coordinator's clock says .* UTC — set the clock"
        with pytest.raises(IdentityError, match=both):
            await enrol(one.invite, tmp_path / "p")
    assert not enrolled_in(tmp_path / "p")
