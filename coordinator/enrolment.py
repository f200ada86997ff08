"""Who gets a certificate: peers with an invite, and those that came in with one before.

Rule: the token opens the door once; afterwards the identity does. Every request is signed by the identity for exactly the TLS
key that it asks a certificate for, so that a copied request certifies nobody else. Whether a use of the invite is left, and
that it is spent, is one transaction of the journal. Neighbours: `journal` keeps tokens and members, `server` owns the two
ports, `peer.enrol` is the other end.
"""

from __future__ import annotations

import datetime
import secrets
from dataclasses import dataclass

from shoal.coordinator.journal import Journal
from shoal.protocol.authority import Authority
from shoal.protocol.enrolment import Enrol, Enrolled, Renew
from shoal.protocol.errors import InviteError, RefusedError
from shoal.protocol.identity import verify_binding
from shoal.protocol.invites import Invite
from shoal.protocol.messages import PeerId
from shoal.protocol.tls import read_certificate

RIGHTS = frozenset({"peer", "reducer"})
"""What an invite gives."""
CERTIFICATE_LIFETIME = datetime.timedelta(hours=24)
"""Short: a stolen certificate or a forgotten peer is a matter of a day. Peers renew at two thirds of it."""


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

    def enrol(self, request: Enrol) -> Enrolled:
        """A certificate for an invited, or known, identity. Raises RefusedError, InviteError, IdentityError."""
        peer = self._verify(request)
        known = self._journal.enrol(peer, request.token, RIGHTS)
        return self._certify(peer, request.tls_key, known.rights)

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

    def _verify(self, request: Enrol | Renew) -> PeerId:
        run = self._authority.run
        if request.run != run:
            raise RefusedError("wrong-run", f"this coordinator serves run {run!r}, not {request.run!r:.80}")
        return verify_binding(run, request.public_key, request.tls_key, request.binding)

    def _certify(self, peer: PeerId, tls_key: bytes, rights: frozenset[str]) -> Enrolled:
        certificate = self._authority.issue(tls_key, peer, rights, self._lifetime)
        self._valid_until[peer] = read_certificate(certificate).expires_at.timestamp()
        return Enrolled(peer, certificate.decode(), self._authority.ca_pem.decode(), self._addresses.session)
