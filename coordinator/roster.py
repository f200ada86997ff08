"""Who is here now: the live side of each membership, and the questions that decisions ask of all of them.

Rule: what is in here dies with the process and is told again by the peers; nothing durable may depend on it. Neighbours: `ledger`
holds what survives, `core` changes what is in here.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from shoal.coordinator.dialling import Reach, Way
from shoal.coordinator.ledger import Ledger
from shoal.protocol.messages import NO_VERSION, SINCE_MINOR, Contact, Heartbeat, Measure, PeerId, Push


class Standing(enum.Enum):
    """What a session can be asked to do."""

    ARRIVING = "arriving"
    """Welcomed; has not yet said what it holds."""
    BUILDING = "building version 0"
    FETCHING = "fetching state"
    ACTIVE = "active"
    """Holds the newest version, or the entries that lead to it."""


@dataclass
class Presence:
    """What is known of a session only while this process lives."""

    session: int
    connection: int | None
    last_heard: float
    standing: Standing = Standing.ARRIVING
    gone_at: float | None = None
    """When the session is lost, unless it comes back."""
    version: int = NO_VERSION
    """What it said that it holds."""
    promised: int = NO_VERSION
    """The newest version whose every part it holds: it gets there by itself, but perhaps not at once."""
    claim: tuple[int, bytes] = (NO_VERSION, b"")
    """Version and fingerprint of the shared state that its Hello spoke of."""
    pending: int = 0
    """Samples of work that a committed round left out, still to be contributed."""
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    beat_at: float = 0.0
    """When the heartbeat came."""
    goodbye: bool = False
    minor: int = 0
    """Minor version of the protocol that it speaks."""
    sent_off_at: float | None = None
    """When it was told to leave, because an operator drains it: no further round counts on it."""
    asked_to_measure: bool = False
    """What its link carries: it is asked once."""
    way: Way = field(default_factory=Way)
    complaints: set[PeerId] = field(default_factory=set)
    """Who could not reach this peer's address; the word of who is gone does not count."""

    @property
    def sent_off(self) -> bool:
        """Whether it was told to leave."""
        return self.sent_off_at is not None


def _rates(presence: Presence) -> tuple[float, float]:
    """What it says that its link carries; 0 where it does not know."""
    return presence.heartbeat.up_bytes_s, presence.heartbeat.down_bytes_s


class Roster:
    """All presences, by session."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._presences: dict[int, Presence] = {}

    def __iter__(self) -> Iterator[Presence]:
        """Over a copy, so that members may end meanwhile."""
        return iter(list(self._presences.values()))

    def __getitem__(self, session: int) -> Presence:
        return self._presences[session]

    @property
    def presences(self) -> Mapping[int, Presence]:
        """By session, to look at."""
        return self._presences

    def __contains__(self, session: int) -> bool:
        return session in self._presences

    def __len__(self) -> int:
        return len(self._presences)

    def add(self, presence: Presence) -> Presence:
        """A membership begins, or is expected back."""
        self._presences[presence.session] = presence
        return presence

    def remove(self, session: int) -> Presence:
        """A membership is over."""
        return self._presences.pop(session)

    def connection_of(self, session: int) -> int | None:
        """The stream of a session, if it has one now."""
        presence = self._presences.get(session)
        return presence.connection if presence is not None else None

    def active(self) -> list[Presence]:
        """Members that hold the newest version or the way to it; reconnecting and leaving ones left out."""
        return list(self._active())

    def _active(self) -> Iterator[Presence]:
        for p in self._presences.values():
            if p.standing is Standing.ACTIVE and p.connection is not None and not p.goodbye and p.sent_off_at is None:
                yield p

    def trainers(self) -> list[Presence]:
        """Active members that train: all but the helpers."""
        members = self._ledger.members
        return [p for p in self.active() if not members[p.session].helper]

    def pusher(self, seeker: int, failed: tuple[PeerId, ...]) -> Presence | None:
        """Who holds the newest version and could bring it to `seeker`, which can be dialled; preferably not one that failed."""
        if not self.dialable(seeker):
            return None
        here = (p for p in self if p.standing is Standing.ACTIVE and p.connection is not None and p.minor >= SINCE_MINOR[Push])
        holders = sorted((p for p in here if p.session != seeker), key=lambda p: p.session)
        able = [p for p in holders if self.peer(p.session) not in failed] or holders
        return able[seeker % len(able)] if able else None

    def is_served(self, donors: Iterable[Contact], failed: Collection[PeerId]) -> bool:
        """Whether one of these donors will do for a seeker, as far as is known: it did not fail, and the coordinator reached it."""
        doubtful = {self.peer(p.session) for p in self if self._is_doubtful(p.session)}
        return any(donor.peer not in failed and donor.peer not in doubtful for donor in donors)

    def dialable(self, session: int) -> bool:
        """Others can open streams to this member: it listens, not half of the others or more failed to reach it, and nor did the
        coordinator, unless it reached nobody."""
        complaints = self[session].complaints
        if not self.address(session) or (self._is_doubtful(session) and self._is_somebody_proven()):
            return False
        if not complaints:
            return True
        complainers = complaints & {self.peer(p.session) for p in self}
        return 2 * len(complainers) < max(2, len(self.active()) - 1)

    def unmeasured(self) -> tuple[Presence, Contact] | None:
        """Somebody whose link nothing tells of yet, and the fellow with whom it can be measured best: of those that are proven
        the one with the fastest link that is known."""
        able = [p for p in self._active() if self.dialable(p.session)]
        for seeker in self._active():
            if seeker.asked_to_measure or seeker.minor < SINCE_MINOR[Measure] or all(_rates(seeker)):
                continue
            if others := [p for p in able if p is not seeker]:
                best = max(others, key=lambda p: (p.way.reach is Reach.PROVEN, min(_rates(p)), -p.session))
                return seeker, Contact(self.peer(best.session), self.address(best.session))
        return None

    def contacts(
        self, seeker: int, failed: tuple[PeerId, ...] = (), only_active: bool = True, among: set[int] | None = None
    ) -> tuple[Contact, ...]:
        """Who can serve bulk bytes to `seeker`, in an order that spreads seekers; those that failed come last, before them those
        that the coordinator did not reach."""
        able = [
            p.session
            for p in sorted(self, key=lambda p: p.session)
            if p.session != seeker
            and p.connection is not None
            and (p.standing is Standing.ACTIVE or not only_active)
            and (among is None or p.session in among)
            and self.address(p.session)
        ]
        turn = seeker % len(able) if able else 0
        ordered = [Contact(self.peer(session), self.address(session)) for session in able[turn:] + able[:turn]]
        doubtful = {self.peer(session) for session in able if self._is_doubtful(session)}
        return tuple(sorted(ordered, key=lambda contact: (contact.peer in failed, contact.peer in doubtful)))

    def forgive_all(self) -> bool:
        """If every listening member was complained about, those get another chance that the coordinator did not fail to reach, too:
        they have to wait for its next test. Whether there are any."""
        if any(self.dialable(p.session) for p in self._active()):
            return False
        listening = [p for p in self.active() if self.address(p.session) and not self._is_doubtful(p.session)]
        for presence in listening:
            presence.complaints.clear()
        return bool(listening)

    def _is_doubtful(self, session: int) -> bool:
        """Whether the coordinator tried to reach this member, and failed."""
        return self[session].way.reach is Reach.FAILED

    def _is_somebody_proven(self) -> bool:
        """Whether the coordinator reached some member that could serve others."""
        return any(p.way.reach is Reach.PROVEN and not p.complaints for p in self._active())

    def peer(self, session: int) -> PeerId:
        """Whose session this is."""
        return self._ledger.members[session].peer

    def address(self, session: int) -> str:
        """Where others dial this member; empty when they cannot."""
        return self._ledger.members[session].address

    def name(self, session: int) -> str:
        """How a person would call this member, whether it is still here or not."""
        member = self._ledger.members.get(session) or self._ledger.limbo.get(session)
        if member is None:
            return f"session {session}"
        return f"{member.name} ({member.peer[:8]})" if member.name else member.peer[:8]
