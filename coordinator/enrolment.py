"""Who gets a certificate: peers with an invite, and those that came in with one before.

Rule: the token opens the door once; afterwards the identity does. Every request is signed by the identity for exactly the TLS
key that it asks a certificate for, so that a copied request certifies nobody else. Whether a use of the invite is left, and
that it is spent, is one transaction of the journal. Who is banned gets nothing. Operators' credentials are made here, too, at the
word of an operator with the admin right. Neighbours: `journal` keeps tokens and members, `server` owns the two
ports, `peer.enrol` is the other end.
"""

from __future__ import annotations

import datetime
import re
import secrets
import time
from dataclasses import dataclass

from shoal.coordinator.journal import Journal
from shoal.protocol.admin import AdminError, Done, Grant, Granted, Invites, InviteView
from shoal.protocol.authority import Authority
from shoal.protocol.enrolment import LOOK_LIMIT_BYTES, Enrol, Enrolled, Look, Looked, Renew
from shoal.protocol.errors import IdentityError, InviteError, RefusedError
from shoal.protocol.identity import verify_binding
from shoal.protocol.invites import Invite
from shoal.protocol.messages import PeerId
from shoal.protocol.tls import read_certificate

RIGHTS = frozenset({"peer", "reducer"})
"""What an invite gives."""
CERTIFICATE_LIFETIME = datetime.timedelta(hours=24)
"""Short: a stolen certificate or a forgotten peer is a matter of a day. Peers renew at two thirds of it."""
WARN_AT = 5 / 6
"""Fraction of a certificate's life after which an operator is warned: its renewal is overdue."""
ROLES = ("admin", "observer")
LONGEST_GRANT_DAYS = 365.0
NAME_LIMIT = 64

LOOK_FRESH_S, LOOKS_REMEMBERED = 1.0, 256
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32}")
"""What `secrets.token_urlsafe(24)` makes."""


@dataclass(frozen=True)
class Addresses:
    """Where peers reach the coordinator."""

    enrolment: tuple[str, ...]
    session: tuple[str, ...]


class Registry:
    """Certifies identities for one run. Methods block on the journal."""

    def __init__(
        self, authority: Authority, journal: Journal, addresses: Addresses, lifetime: datetime.timedelta = CERTIFICATE_LIFETIME
    ) -> None:
        self._authority = authority
        self._journal = journal
        self._addresses = addresses
        self._lifetime = lifetime
        self._valid_until: dict[PeerId, float] = {}
        self._looked_at: dict[str, tuple[float, str]] = {}
        """What was said of tokens lately, and when."""
        self._barred: frozenset[PeerId] = frozenset()

    def bar(self, peers: frozenset[PeerId]) -> None:
        """These identities, and no others, are banned."""
        self._barred = peers

    def is_barred(self, peer: PeerId) -> bool:
        """Whether this identity is banned."""
        return peer in self._barred

    def overdue(self, expires_at: float) -> bool:
        """Whether a certificate that ends then (wall clock) should have been renewed long ago."""
        return expires_at - time.time() < (1.0 - WARN_AT) * self._lifetime.total_seconds()

    def grant(self, request: Grant, by: PeerId) -> Granted | AdminError:
        """A certificate for a new operator; it counts, and is remembered, when this returns."""
        if request.role not in ROLES:
            return AdminError(f"there is no role {request.role!r:.40}", f"grant one of: {', '.join(ROLES)}")
        if not 0 < request.days <= LONGEST_GRANT_DAYS:
            return AdminError(f"cannot grant for {request.days:g} days", f"above 0, at most {LONGEST_GRANT_DAYS:g}")
        if not request.name.isprintable() or len(request.name) > NAME_LIMIT:
            return AdminError(f"{request.name!r:.80} cannot be an operator's name", f"up to {NAME_LIMIT} printable characters")
        try:
            peer = verify_binding(self._authority.run, request.public_key, request.tls_key, request.binding)
        except IdentityError as error:
            return AdminError(error.message, error.fix)
        if self._journal.enrolled(peer) is not None or self.is_barred(peer):
            return AdminError(f"{peer} is a peer of this run, or banned", "let the operator have an identity of its own")
        lifetime = datetime.timedelta(days=request.days)
        certificate = self._authority.issue(request.tls_key, peer, {request.role}, lifetime)
        self._journal.add_operator(peer, request.role, request.name, read_certificate(certificate).expires_at.timestamp(), by)
        return Granted(peer, request.role, certificate.decode(), self._authority.ca_pem.decode())

    def enrol(self, request: Enrol) -> Enrolled:
        """A certificate for an invited, or known, identity. Raises RefusedError, InviteError, IdentityError."""
        peer = self._verify(request)
        known = self._journal.enrol(peer, request.token, RIGHTS)
        return self._certify(peer, request.tls_key, known.rights)

    def look(self, request: Look, seen_from: str) -> Looked:
        """What somebody who thinks of joining wants to know. Bytes go back only to those with an invite that is good, and no more
        than they may send."""
        if request.run != self._authority.run:
            trouble = self._wrong_run(request.run).reason
        else:
            trouble = self._trouble_with(request.token)
        payload = b"" if trouble else bytes(min(request.want_bytes, LOOK_LIMIT_BYTES))
        return Looked(time.time(), seen_from, trouble, payload, self._lifetime.total_seconds())

    def _trouble_with(self, token: str) -> str:
        """Why an invite would let nobody in, or "". Anybody may ask, so the journal is troubled once a second by one that it could
        know, and by nothing else."""
        now = time.monotonic()
        at, trouble = self._looked_at.get(token, (-LOOK_FRESH_S, ""))
        if now - at < LOOK_FRESH_S:
            return trouble
        if len(self._looked_at) >= LOOKS_REMEMBERED:
            self._looked_at.clear()
        try:
            if not _TOKEN.fullmatch(token):
                raise InviteError("this run does not know this invite", "ask the run's operator for a new one (shoal admin invite)")
            self._journal.check_invite(token)
            trouble = ""
        except InviteError as error:
            trouble = str(error)
        self._looked_at[token] = (now, trouble)
        return trouble

    def renew(self, request: Renew, caller: PeerId) -> Enrolled:
        """A newer certificate for the identity that asks with the one that it has. Raises like `enrol`."""
        peer = self._verify(request)
        if peer != caller:
            raise RefusedError("not-yours", f"{caller} asked for a certificate of {peer}")
        known = self._journal.enrolled(peer)
        if known is None:
            raise InviteError(f"{peer} is not enrolled in this run", "enrol with an invite")
        return self._certify(peer, request.tls_key, known.rights)

    def valid_until(self, peer: PeerId) -> float:
        """When the newest certificate of `peer` that this process issued ends (wall clock); 0 when it issued none."""
        return self._valid_until.get(peer, 0.0)

    def invite(self, uses: int, hours: float, by: PeerId) -> Invite:
        """A new invite; it counts when this returns."""
        token = secrets.token_urlsafe(24)
        self._journal.add_invite(token, uses, hours * 3600.0, by)
        return Invite(self._authority.run, self._addresses.enrolment, self._addresses.session, self._authority.ca_pem, token)

    def invites(self, spent: bool) -> Invites:
        """Those that let somebody in; with `spent` the others, too."""
        listed = [known for known in self._journal.invites() if spent or known.state == "open"]
        return Invites(
            tuple(
                InviteView(
                    known.id, known.state, max(0, known.uses_left), known.enrolled, known.made_at, known.expires_at, known.made_by
                )
                for known in listed
            )
        )

    def revoke(self, invite: str) -> Done | AdminError:
        """Let nobody in with an invite any more; it counts when this returns."""
        try:
            revoked = self._journal.revoke_invite(invite)
        except InviteError as error:
            return AdminError(error.message, error.fix)
        self._looked_at.clear()
        return Done(f"invite {revoked} lets nobody in any more; who came in with it stays (kick or ban them)")

    def _verify(self, request: Enrol | Renew) -> PeerId:
        run = self._authority.run
        if request.run != run:
            raise self._wrong_run(request.run)
        peer = verify_binding(run, request.public_key, request.tls_key, request.binding)
        if self.is_barred(peer):
            raise RefusedError("banned", f"{peer[:8]} is banned from run {run!r}", "ask the run's operator, who can take it back")
        return peer

    def _wrong_run(self, asked: str) -> RefusedError:
        return RefusedError("wrong-run", f"this coordinator serves run {self._authority.run!r}, not {asked!r:.80}")

    def _certify(self, peer: PeerId, tls_key: bytes, rights: frozenset[str]) -> Enrolled:
        certificate = self._authority.issue(tls_key, peer, rights, self._lifetime)
        self._valid_until[peer] = read_certificate(certificate).expires_at.timestamp()
        return Enrolled(peer, certificate.decode(), self._authority.ca_pem.decode(), self._addresses.session, time.time())
