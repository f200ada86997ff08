"""The coordinator's decisions, without a socket, clock, thread or file: `on(event, now) -> list[Effect]`.

Guided tour. A stream says Hello and becomes a *session* (`_hello`); the session gets hold of the shared state (`_locate`,
`_state_ready`) and is ACTIVE; as soon as enough active members are there a *round* opens (`_open_round`), gathers, reduces, and
commits or is abandoned (`_advance`, which every event and every passing of time ends with); what is lost on the way with a member,
and only that, is done again by others (`_repair`). Durable facts are records: `_journal` emits the record and folds it into the
`Ledger` in the same breath, so that what is journaled and what is believed cannot differ.

Rules. Identity comes from the stream's certificate, never from a message. A message with another session or term than its stream's
is dropped. Members are compared, never counted. Only the coordinator abandons. Neighbours: `ledger` is the durable state,
`roster` who is here now, `rounds` one round's bookkeeping, `gathering` when it closes, `waits` what the run waits for, `pace` how
long things took, `ballots` the votes on fingerprints, `admission` who may come in, `dialling` who can be reached, `verbs` what
operators may do, `views` what they see, `server` the shell that performs the effects.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import assert_never

from shoal.coordinator import admission, claims, expectations, gathering, settings, verbs, views, waits
from shoal.coordinator.ballots import Ballots
from shoal.coordinator.dialling import Reach
from shoal.coordinator.events import (
    Answer,
    Asked,
    Bar,
    Close,
    Connected,
    DialBack,
    DialledBack,
    Disconnected,
    Effect,
    Event,
    Journal,
    Log,
    Said,
    Send,
    TimePassed,
)
from shoal.coordinator.ledger import Ledger, Member, total
from shoal.coordinator.pace import Pace
from shoal.coordinator.records import (
    AddressLearnt,
    FingerprintAgreed,
    Limits,
    OriginBuilt,
    PeerBanned,
    PeerEvaluated,
    PeerUnbanned,
    Record,
    Report,
    RoundAbandoned,
    RoundCommitted,
    RoundOpened,
    RunEnded,
    RunStopping,
    SessionEnded,
    SessionOpened,
    SessionResumed,
    SettingChanged,
    Showing,
    Spent,
    TermRaised,
    WorkReported,
)
from shoal.coordinator.roster import Presence, Roster, Standing
from shoal.coordinator.rounds import Round, RoundState, Slot, plan_order, regrouped
from shoal.coordinator.shares import Link, planned_shares
from shoal.coordinator.waits import SILENCE_S, Waiting
from shoal.protocol.admin import (
    AdminCommand,
    AdminError,
    AdminReply,
    Ban,
    Change,
    Done,
    Drain,
    GetEvents,
    GetInvites,
    GetLeaderboard,
    GetPeers,
    GetRounds,
    GetSettings,
    GetStatus,
    Grant,
    Kick,
    MakeInvite,
    Pause,
    Resume,
    RevokeInvite,
    Stop,
    Unban,
)
from shoal.protocol.entries import brief, whole_catch_up, whole_commit
from shoal.protocol.messages import (
    NO_SESSION,
    NO_VERSION,
    SINCE_MINOR,
    Abandoned,
    Applied,
    Barred,
    BuildOrigin,
    CatchUp,
    Commit,
    Complaint,
    Contact,
    Contribution,
    ContributorLost,
    Dismissed,
    Donors,
    Envelope,
    Evaluate,
    Evaluated,
    Fetch,
    Fingerprint,
    Finish,
    FromCoordinator,
    Goodbye,
    Have,
    Heartbeat,
    Held,
    Hello,
    Leave,
    Locate,
    Measure,
    Notice,
    Open,
    PartClosed,
    PeerId,
    Plan,
    Push,
    Ready,
    Refused,
    Replan,
    Resync,
    Section,
    Share,
    StateReady,
    StopRule,
    Welcome,
    Wrap,
)
from shoal.protocol.spec import RunSpec

FAREWELL_S = 30.0
"""How long finished members wait for slower ones that still fetch the last version."""
ASLEEP_S = 1.0
"""An event that comes this long after `wake_at` means that this process stood still: nobody was heard for want of listening."""
LOOK_S = 0.25
"""How often heartbeats make the coordinator add up what the members have trained."""
LARGEST_NORM = 1e12
"""A claim beyond that is shown as that."""
MEASURED_FROM = 4 << 20
"""Parameters of a model from which it pays to know the links before its first exchange."""
MEASURE_S = 12.0
"""How long a member may take to measure its link, and to say so."""
FEW = 32
"""So many members hear at once what the run waits for, each time that it changes."""
NOTICES_PER_S = 256
"""More members hear of it later, not more of them in a second than this."""
FRESH_HEARTBEATS = 1.5
"""Who was not heard for longer may be gone already: no leaver's copy is given up on its account."""
SEND_OFF_S = 30.0
"""How long a drained member may take to say goodbye."""
BRIEF_SINCE_MINOR = 2
"""Peers of an older minor version want each part of an entry to say who is in it."""


class Core:
    """The coordinator's state machine. Replay the journal, `start`, then feed events."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = self._initial = spec
        self.ledger = Ledger()
        self.ledger.keep_entries = spec.state.keep_entries
        self.round: Round | None = None
        self._effects: list[Effect] = []
        self._callers: dict[int, Connected] = {}
        self._session_of: dict[int, int] = {}
        self._roster = Roster(self.ledger)
        self._seekers: set[int] = set()
        """Sessions whose Locate could not be answered yet."""
        self._ballots = Ballots()
        self._waiting = Waiting()
        self._unsaid = False
        """Members do not know yet what the run waits for."""
        self._notice_at = 0.0
        """They are not told before."""
        self._enough_since: float | None = None
        self._backoff = waits.Backoff()
        self._pace = Pace()
        self._evaluating: tuple[int, int] | None = None
        self._farewell_at: float | None = None
        self._barred = Barred(())
        self._reported: dict[int, set[int]] = {}
        """Sessions that told a version's cost: each is heard once."""
        self._reports: dict[int, dict[int, Report]] = {}
        """What members said of a version's cost, by session, and that is not journaled yet."""
        self._clock = 0.0
        self._vigil_at = math.inf
        """Nobody is lost before. Whoever is heard is lost later, so that this may be too early, and is never too late."""
        self._measuring: tuple[int, float] | None = None
        """The session that measures its link, and by when."""
        self.stale = 0
        """Messages dropped because their session, term or round was over."""

    # --- life -------------------------------------------------------------------------------------------------------------------

    def replay(self, record: Record) -> None:
        """Fold one stored record in, oldest first, before `start`."""
        self.ledger.apply(record)

    def start(self, now: float) -> list[Effect]:
        """Take the journal over: raise the term, expect the members back, abandon what was undecided."""
        self._clock = now
        if not self.ledger.run:
            raise ValueError("the journal does not start with RunCreated")
        self._journal(TermRaised(self.ledger.term + 1))
        self.spec = settings.changed(self._initial, self.ledger.settings)
        self._bans_changed()
        for session in self.ledger.members:
            self._look_out(self._roster.add(Presence(session, None, now, gone_at=now + self.spec.timing.lost_after_s)))
        if self.ledger.undecided is not None:
            self._journal(RoundAbandoned(self.ledger.undecided.round, "the coordinator was restarted"))
        self._log(f"term {self.ledger.term}: version {self.ledger.version}, {len(self.ledger.members)} members expected back")
        self._advance(now)
        return self._take_effects()

    def on(self, event: Event, now: float) -> list[Effect]:
        """One event in, the effects that follow from it out. Raises nothing that an event's content could provoke."""
        due = self.wake_at
        if due is not None and now > due + ASLEEP_S:
            self._pardon(now)
        quiet = self._is_quiet(event) and (due is None or now < due)
        if not quiet:
            self._clock = now
        match event:
            case Connected(connection):
                self._callers[connection] = event
            case Said(connection, envelope):
                self._said(connection, envelope, now)
            case Disconnected(connection):
                self._disconnected(connection, now)
            case TimePassed():
                pass
            case DialledBack():
                self._dialled_back(event)
            case Asked(request, by, command):
                self._effects.append(Answer(request, self._answer(command, by, now)))
            case _:
                assert_never(event)
        if not quiet:
            self._advance(now)
        return self._take_effects()

    def _is_quiet(self, event: Event) -> bool:
        """Whether nothing follows from an event before time is due: most of what thousands of idle members cause costs no more."""
        match event:
            case Connected():
                return True
            case Said(_, Envelope(_, _, Heartbeat())):
                return self.round is None or self.spec.round.stop != "samples"
            case _:
                return False

    @property
    def wake_at(self) -> float | None:
        """When TimePassed is due, if nothing happens before."""
        times = [self._vigil_at] if self._roster else []
        if self._unsaid:
            times.append(self._notice_at)
        if self._farewell_at is not None:
            times.append(self._farewell_at)
        if self.round is not None:
            times += self._round_deadlines(self.round)
        elif self._backoff.until > self._clock:
            times.append(self._backoff.until)
        elif self._enough_since is not None:
            times.append(max(self._enough_since + self._patience(), self._backoff.until))
        return min(times, default=None)

    def _round_deadlines(self, round_: Round) -> list[float]:
        if round_.state is RoundState.GATHERING:
            return [at for at in (round_.look_again_at, round_.explain_at) if self._clock < at < math.inf]
        times = [round_.hurried_at + round_.deadlines.reduce_s]
        if round_.planned_at + SILENCE_S > self._clock:
            times.append(round_.planned_at + SILENCE_S)
        if round_.decided_at is not None and round_.decided_at + round_.deadlines.delivery_s > self._clock:
            times.append(round_.decided_at + round_.deadlines.delivery_s)
        return times + [at for at in round_.repair_times() if at > self._clock]

    # --- streams and sessions ---------------------------------------------------------------------------------------------------

    def _said(self, connection: int, envelope: Envelope, now: float) -> None:
        if connection not in self._callers:
            return
        session = self._session_of.get(connection)
        body = claims.believable(envelope.body)
        if session is None:
            if isinstance(body, Hello):
                self._hello(connection, body, now)
            return
        presence = self._roster[session]
        if not self._fits(envelope, session):
            self.stale += 1
            return
        presence.last_heard = now
        match body:
            case Hello():
                self.stale += 1
            case Heartbeat():
                presence.heartbeat, presence.beat_at = gathering.with_usable_speed(body), now
                if self._measuring is not None:
                    self._measure_next(now)
                if self.round is not None and self.spec.round.stop == "samples":
                    self.round.look_again_at = min(self.round.look_again_at, self.round.looked_at + LOOK_S)
            case StateReady():
                self._state_ready(presence, body, now)
            case Locate():
                self._locate(presence, body, now)
            case Ready():
                self._ready(presence, body, now)
            case PartClosed():
                self._part_closed(presence, body, now)
            case Have():
                self._have(presence, body, now)
            case Applied():
                self._applied(presence, body)
            case Fingerprint(version, root):
                self._fingerprint(presence, version, root)
            case Evaluated():
                self._evaluated(presence, body)
            case Complaint():
                self._complaint(presence, body, now)
            case Goodbye(reason):
                self._goodbye(presence, reason, now)
            case _:
                self.stale += 1

    def _fits(self, envelope: Envelope, session: int) -> bool:
        """Whether a message belongs to the conversation that its stream carries."""
        return envelope.session == session and envelope.term == self.ledger.term

    def _hello(self, connection: int, hello: Hello, now: float) -> None:
        peer, rights = self._callers[connection].peer, self._callers[connection].rights
        ledger = self.ledger
        handed_over = self._may_be_handed_over(peer, hello.address)
        refusal = admission.why_barred(ledger, peer) or admission.why_not(ledger, rights, hello, handed_over)
        if refusal is not None:
            return self._refuse(connection, refusal)
        member = ledger.member_of(peer)
        if member is None:
            return self._new_session(connection, peer, hello, now)
        presence = self._roster[member.session]
        same = member.instance == hello.instance
        if presence.connection is not None and not same:
            reason = f"a daemon with this identity is a member already, from {member.address or 'an undialable address'}"
            fix = "stop the other one, or join with another --identity"
            return self._refuse(connection, Refused("ALREADY_EXISTS", reason, fix))
        if presence.connection is not None:
            self._drop_connection(presence.connection)
        if not self._may_resume(member, hello):
            self._end(member.session, "replaced by a new daemon of the same peer", now)
            return self._new_session(connection, peer, hello, now)
        self._journal(SessionResumed(member.session, hello.instance, hello.address))
        if not same:
            self._restarted(presence, now)
        self._bind(connection, presence, hello, now)
        self._welcome(connection, member.session, resumed=True)
        return None

    def _may_be_handed_over(self, seeker: PeerId, address: str) -> bool:
        """Another member holds the newest version, or has yet to come back and say what it holds, and one of the two listens."""
        roster = self._roster
        others = [p for p in roster if roster.peer(p.session) != seeker and (address or roster.address(p.session))]
        return any(p.standing in (Standing.ACTIVE, Standing.ARRIVING) for p in others)

    def _may_resume(self, member: Member, hello: Hello) -> bool:
        """The same membership goes on only for a peer that names it: another one's pending work was leased to others."""
        return hello.session == member.session and hello.helper == member.helper

    def _new_session(self, connection: int, peer: PeerId, hello: Hello, now: float) -> None:
        session = self.ledger.next_session
        self._journal(
            SessionOpened(
                session,
                peer,
                hello.instance,
                hello.address,
                hello.name,
                hello.device,
                hello.software,
                hello.helper,
            )
        )
        presence = self._roster.add(Presence(session, connection, now))
        self._bind(connection, presence, hello, now)
        self._log(f"{self._roster.name(session)} joined as session {session}{', a helper' if hello.helper else ''}")
        self._welcome(connection, session, resumed=False)

    def _bind(self, connection: int, presence: Presence, hello: Hello, now: float) -> None:
        presence.connection, presence.last_heard, presence.gone_at = connection, now, None
        presence.standing, presence.version = Standing.ARRIVING, hello.version
        presence.claim = (hello.version, hello.root)
        presence.minor, presence.sent_off_at = hello.minor, None
        presence.complaints.clear()
        presence.way = presence.way.after_hello(hello.address, self._callers[connection].seen_from)
        self._session_of[connection] = presence.session
        self._look_out(presence)

    def _welcome(self, connection: int, session: int, resumed: bool) -> None:
        timing = self.spec.timing
        self._send(
            session,
            Welcome(
                session, self.ledger.term, resumed, self.ledger.version, self.ledger.spec, timing.heartbeat_s, timing.lost_after_s
            ),
        )
        if self._waiting.what:
            self._send(session, self._waiting.notice())
        if self.ledger.banned:
            self._send(session, self._barred)
        self._test_way(self._roster[session], self._roster[session].way.pause_s)

    def _test_way(self, presence: Presence, after_s: float = 0.0) -> None:
        """Have it found out whether others can dial this member."""
        if presence.connection is not None and presence.way.places:
            presence.way.under_test = True
            peer = self._roster.peer(presence.session)
            self._effects.append(DialBack(presence.connection, peer, presence.way.places, after_s))

    def _dialled_back(self, found: DialledBack) -> None:
        """What came of that: others are told where the member was reached; one that was not reached gets another test later."""
        session = self._session_of.get(found.connection)
        if session is None:
            return
        presence, name = self._roster[session], self._roster.name(session)
        way, before = presence.way, presence.way.reach
        if not found.address:
            way.failed()
            presence.complaints.clear()  # what happened since the last test is no news; the next complaint is
            if before is not Reach.FAILED:
                self._log_of(self._roster.peer(session), f"could not dial {name}: {found.reason}")
                self._send(session, way.refusal())
            self._test_way(presence, way.pause_s)
            return
        way.answered()
        if before is Reach.FAILED:
            self._log_of(self._roster.peer(session), f"{name} can be dialled now, at {found.address}", "info")
        if found.address != self._roster.address(session):
            self._journal(AddressLearnt(session, found.address))
            if found.address != way.advertised:
                said = f"{name} advertises {way.advertised}, where it was not reached: others are told {found.address}"
                self._log_of(self._roster.peer(session), said)
                self._send(session, way.correction(found.address))

    def _refuse(self, connection: int, refusal: Refused) -> None:
        self._effects.append(Send(connection, Envelope(NO_SESSION, self.ledger.term, refusal)))
        self._effects.append(Close(connection))
        peer = self._callers[connection].peer
        self._log_of(peer, f"refused {peer}: {refusal.reason}", "info")

    def _restarted(self, presence: Presence, now: float) -> None:
        """A member is back as a new process: what its old one kept in memory for the round in flight is gone."""
        round_ = self.round
        if round_ is None:
            return
        round_.ready.pop(presence.session, None)
        peer = self.ledger.members[presence.session].peer
        if round_.state is RoundState.REDUCING and round_.collectors.get(peer) == presence.session:
            round_.forget(presence.session)
            round_.cut_off(peer, now)
            self._contributor_lost(round_, peer, "restarted in the middle of it")

    def _disconnected(self, connection: int, now: float) -> None:
        self._callers.pop(connection, None)
        session = self._session_of.pop(connection, None)
        if session is None:
            return
        presence = self._roster[session]
        presence.connection = None
        presence.gone_at = now + self.spec.timing.grace_s
        self._look_out(presence)
        if presence.goodbye:
            self._end(session, "left", now)

    def _drop_connection(self, connection: int) -> None:
        self._session_of.pop(connection, None)
        self._callers.pop(connection, None)
        self._effects.append(Close(connection))

    def _goodbye(self, presence: Presence, reason: str, now: float) -> None:
        presence.goodbye = True
        if self.ledger.ended is not None:
            return
        others = self._roster.trainers()
        if not others and self._can_write_model(presence) and self.ledger.version > 0:
            self._send(presence.session, Finish(self.ledger.version, "you are the last member to leave", run_is_over=False))
        self._end(presence.session, f"left: {reason}" if reason else "left", now)

    def _can_write_model(self, presence: Presence) -> bool:
        """It holds the newest version, and has a trainer to write it with."""
        return presence.standing is Standing.ACTIVE and not self.ledger.members[presence.session].helper

    def _end(self, session: int, reason: str, now: float, may_return: bool = True) -> None:
        """End a membership for good. `may_return`: the peer's daemon comes back by itself, unless it said goodbye."""
        presence = self._roster.remove(session)
        name = self._roster.name(session)
        peer = self.ledger.members[session].peer
        self._journal(SessionEnded(session, reason))
        self._seekers.discard(session)
        self._log(f"{name} {reason}")
        if presence.connection is not None:
            fresh = {p.session for p in self._roster if now < p.last_heard + FRESH_HEARTBEATS * self.spec.timing.heartbeat_s}
            others_hold_it = bool(self._roster.contacts(session, among=fresh))
            self._send_on(presence.connection, session, Dismissed(reason, may_return and not presence.goodbye, others_hold_it))
            self._drop_connection(presence.connection)
        if not self._roster:
            self._journal_reports()
        round_ = self.round
        if round_ is None:
            return
        round_.members.discard(session)
        round_.ready.pop(session, None)
        if round_.state is RoundState.REDUCING and round_.collectors.get(peer) == session:
            round_.lose(peer, now)
            self._contributor_lost(round_, peer, "is lost")

    # --- shared state -----------------------------------------------------------------------------------------------------------

    def _state_ready(self, presence: Presence, said: StateReady, now: float) -> None:
        ledger, session = self.ledger, presence.session
        unfit = admission.why_unfit(ledger, said)
        if unfit is not None:
            assert presence.connection is not None
            self._refuse(presence.connection, unfit)
            self._end(session, f"does not fit the run: {unfit.reason}", now)
            return
        if not ledger.bound and said.version == 0 and self._origin_is_open(session, said):
            self._journal(OriginBuilt(session, said.layout, said.root, said.data))
            self._log(
                f"{self._roster.name(session)} built version 0: {said.layout.values} values, fingerprint {said.root.hex()[:12]}"
            )
            for other in self._roster.active():
                if other.session != session:
                    self._resync(other, 0, said.root)
        if said.version != ledger.version or said.version == NO_VERSION:
            presence.standing = Standing.FETCHING
            self._locate(presence, Locate(said.version), now)
            return
        agreed = ledger.fingerprints.get(said.version)
        if agreed is not None and said.root and said.root != agreed.root:
            presence.standing = Standing.FETCHING
            self._send(session, Resync(said.version, agreed.root, "your copy differs from what was agreed"))
            return
        presence.version, presence.claim = said.version, (said.version, said.root)
        if presence.standing is not Standing.ACTIVE:
            presence.standing = Standing.ACTIVE
            self._rejoin_round(presence)
            self._measure_next(now)
            for seeker in sorted(self._seekers):
                other = self._roster[seeker]
                self._locate(other, Locate(other.version), now)
        if ledger.ended is not None:
            self._send(session, Finish(ledger.version, ledger.ended.reason))

    def _measure_next(self, now: float) -> None:
        """Have one link after the other measured that nothing tells of yet: two at once would share one. Not for models that are
        exchanged sooner than that takes."""
        if self._measuring is not None:
            session, until = self._measuring
            beat = self._roster[session].heartbeat if session in self._roster else None
            if beat is not None and not (beat.up_bytes_s and beat.down_bytes_s) and now < until:
                return
            self._measuring = None
        origin = self.ledger.origin
        found = self._roster.unmeasured() if origin is not None and origin.layout.values >= MEASURED_FROM else None
        if found is not None:
            presence, fellow = found
            presence.asked_to_measure = True
            self._measuring = (presence.session, now + MEASURE_S)
            self._send(presence.session, Measure(fellow))

    def _origin_is_open(self, session: int, said: StateReady) -> bool:
        """Version 0 is still anybody's: nobody built it, or nobody is left who could hand it over."""
        origin = self.ledger.origin
        if origin is None:
            return True
        listens = self._roster.dialable(session)
        others = [p for p in self._roster.active() if p.session != session and (listens or self._roster.dialable(p.session))]
        return not others and said.root != origin.root

    def _rejoin_round(self, presence: Presence) -> None:
        """A member that came back hears again what it may have missed."""
        round_ = self.round
        if round_ is None:
            return
        if round_.state is RoundState.GATHERING and presence.session in round_.members:
            round_.wrapped.pop(presence.session, None)  # that it was asked may be lost with its old stream
            self._send_open(presence.session, round_)
        elif round_.plan is not None and presence.session in round_.collectors.values():
            self._send(presence.session, round_.plan)
            if replanned := round_.replanned():
                self._send(presence.session, Replan(round_.id, replanned))
            for peer in sorted(round_.lost & round_.weights.keys()):
                self._send(presence.session, ContributorLost(round_.id, peer))

    def _locate(self, presence: Presence, said: Locate, now: float) -> None:
        ledger, session = self.ledger, presence.session
        if self._strays(presence, said.version):
            said = replace(said, version=NO_VERSION)  # no entry fits on a state that was never the run's
        presence.version = said.version
        if said.version == ledger.version and said.version != NO_VERSION:
            self._seekers.discard(session)
            self._send(session, CatchUp((), ()))
            return
        presence.standing = Standing.FETCHING
        if self.round is not None and self.round.state is RoundState.GATHERING:
            self.round.members.discard(session)
            self.round.ready.pop(session, None)
        donors = self._roster.contacts(session, said.failed, only_active=True)
        pusher = None if self._roster.is_served(donors, said.failed) else self._roster.pusher(session, said.failed)
        if pusher is not None:
            donors = (Contact(self._roster.peer(pusher.session), ""), *donors)
        me = ledger.members[session]
        may_build = not me.helper and (me.address or not any(p.session != session for p in self._roster.active()))
        if ledger.version <= 0 and not ledger.bound and not donors and may_build:
            self._build_origin(presence)
            return
        missing = range(said.version + 1, ledger.version + 1)
        if said.version != NO_VERSION and all(version in ledger.entries for version in missing):
            contacts = donors or self._roster.contacts(session, (), only_active=False)
            self._seekers.discard(session)
            self._send(session, CatchUp(tuple(self._commit_message(ledger.entries[v], contacts) for v in missing), contacts))
        elif donors:
            self._seekers.discard(session)
            self._send(session, Donors(ledger.version, donors))
        else:
            self._seekers.add(session)
            self._send(session, waits.for_state(ledger, self._roster).notice())
        if pusher is not None:
            self._send(pusher.session, Push(Contact(me.peer, me.address)))

    def _strays(self, presence: Presence, version: int) -> bool:
        """Whether a peer came with another state under this version's name: a version 0 of its own, most likely."""
        claimed, root = presence.claim
        agreed = self.ledger.fingerprints.get(version)
        return claimed == version and agreed is not None and root != agreed.root and bool(root or version == 0)

    def _build_origin(self, presence: Presence) -> None:
        builder = next((p for p in self._roster if p.standing is Standing.BUILDING and p.connection is not None), None)
        if builder is None or builder.session == presence.session:
            presence.standing = Standing.BUILDING
            self._seekers.discard(presence.session)
            self._send(presence.session, BuildOrigin())
        else:
            self._seekers.add(presence.session)
            self._send(presence.session, Notice(f"{self._roster.name(builder.session)} to build version 0", 0, 1, "nothing to do"))

    def _applied(self, presence: Presence, said: Applied) -> None:
        presence.version = max(presence.version, min(said.version, self.ledger.version))
        if self.round is not None:
            self.round.seen = ()  # a member that was behind may be waited for again
        if not self.ledger.version - len(self.ledger.entries) < said.version <= self.ledger.version:
            return
        peer = self.ledger.members[presence.session].peer
        heard = self._reported.setdefault(said.version, set())
        if presence.session in heard:
            return
        heard.add(presence.session)
        for old in [version for version in self._reported if version <= self.ledger.version - len(self.ledger.entries)]:
            del self._reported[old]
        reports = self._reports.setdefault(said.version, {})
        cosine = max(-1.0, min(1.0, said.cosine))
        norm = gathering.within(said.norm, LARGEST_NORM)
        reports[presence.session] = Report(peer, said.sent_bytes, said.received_bytes, said.train_s, said.wait_s, norm, cosine)
        if said.version == self.ledger.version and {p.session for p in self._roster.active()} <= heard:
            self._journal_reports()

    def _journal_reports(self) -> None:
        """What rounds cost, as far as it is known, outlives this process."""
        for version, reports in sorted(self._reports.items()):
            self._journal(WorkReported(version, tuple(report for _, report in sorted(reports.items()))))
        self._reports.clear()

    def _fingerprint(self, presence: Presence, version: int, root: bytes) -> None:
        if version > self.ledger.version or presence.standing is not Standing.ACTIVE:
            return
        agreed = self.ledger.fingerprints.get(version)
        if agreed is not None:
            if root != agreed.root:
                self._resync(presence, version, agreed.root)
            return
        self._ballots.cast(version, presence.session, root)
        self._ballots.forget_before(self.ledger.version - self.ledger.keep_entries)

    def _count_votes(self) -> None:
        """Settle what can be settled; whoever voted otherwise resynchronises."""
        for version in self._ballots.versions:
            verdict = self._ballots.settle(version, self._electorate(version))
            if verdict is None:
                continue
            if verdict.flagged:
                self._log(f"no majority on version {version}: the longest-standing member's copy is declared", "warning")
            self._journal(FingerprintAgreed(version, verdict.root, verdict.votes, verdict.voters, verdict.flagged))
            for session in verdict.differing:
                self._resync(self._roster[session], version, verdict.root)

    def _electorate(self, version: int) -> set[int]:
        """Members that hold this version, or will as soon as they have applied what they hold."""
        return {p.session for p in self._roster.active() if max(p.version, p.promised) >= version}

    def _resync(self, presence: Presence, version: int, root: bytes) -> None:
        self._log(f"{self._roster.name(presence.session)} differs from the others at version {version}", "warning")
        presence.standing = Standing.FETCHING
        if self.round is not None and self.round.state is RoundState.GATHERING:
            self.round.members.discard(presence.session)
            self.round.ready.pop(presence.session, None)
        self._send(presence.session, Resync(version, root, "your copy differs from the strict majority's"))

    # --- rounds -----------------------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        """Whatever time and the newest facts allow: lose the silent, settle votes, move the round, open the next, say why not."""
        self._lose_silent(now)
        self._count_votes()
        if self.round is not None:
            self._advance_round(self.round, now)
        self._send_off(now)
        if self.ledger.ended is None and self.ledger.stopping is not None and self.round is None:
            self._finish_run()
        if self.ledger.ended is not None:
            self._say_waiting(Waiting(), now)
            self._farewell(now)
            return
        if self._roster.forgive_all():
            self._log("every member was complained about: all get another chance", "warning")
        self._say_waiting(self._why_waiting(now), now)
        if self.round is None:
            if self._waiting.what:
                self._enough_since = None
            elif self._enough_since is None:
                self._enough_since = now
            if self._enough_since is not None and now >= max(self._enough_since + self._patience(), self._backoff.until):
                self._open_round(now)

    def _patience(self) -> float:
        """The first round waits a little for more members; later ones open at once."""
        return 0.0 if self.ledger.bound and self._roster.active() else self.spec.timing.join_wait_s

    def _pardon(self, now: float) -> None:
        """This process was suspended, or starved: that is no evidence against any peer."""
        for presence in self._roster:
            presence.last_heard = max(presence.last_heard, now)
            if presence.gone_at is not None:
                presence.gone_at = max(presence.gone_at, now + self.spec.timing.grace_s)
        if self._roster:
            self._log("the coordinator stood still for a while: members are given time to be heard", "warning")

    def _look_out(self, presence: Presence) -> None:
        """From now on, time alone may end this membership."""
        self._vigil_at = min(self._vigil_at, self._lost_at(presence))

    def _lost_at(self, presence: Presence) -> float:
        """When a member is lost or let go, if nothing is heard of it."""
        if presence.connection is None:
            return math.inf if presence.gone_at is None else presence.gone_at
        let_go_at = math.inf if presence.sent_off_at is None else presence.sent_off_at + SEND_OFF_S
        return min(presence.last_heard + self.spec.timing.lost_after_s, let_go_at)

    def _lose_silent(self, now: float) -> None:
        if now < self._vigil_at:
            return
        lost_after = self.spec.timing.lost_after_s
        for presence in self._roster:
            if presence.connection is not None and now >= presence.last_heard + lost_after:
                self._end(presence.session, f"was lost: silent for {lost_after:g} s", now)
            elif presence.gone_at is not None and now >= presence.gone_at:
                self._end(presence.session, "was lost: its connection broke", now)
        self._vigil_at = min(map(self._lost_at, self._roster), default=math.inf)

    def _why_waiting(self, now: float) -> Waiting:
        if self.ledger.paused:
            return waits.PAUSED
        if self.round is not None:
            return waits.in_round(self.round, self.ledger, self._roster, now)
        if (members := waits.for_members(self.spec, self.ledger, self._roster, self._seekers)).what:
            return members
        pause = self._backoff.waiting(now)
        return pause if pause.what else waits.for_reach(self._roster)

    def _say_waiting(self, waiting: Waiting, now: float) -> None:
        """Tell everybody what the run waits for, when that changes; not for each of thousands that come back after one another."""
        self._unsaid |= waiting.what != self._waiting.what
        self._waiting = waiting
        if not self._unsaid or now < self._notice_at:
            return
        members = len(self._roster)
        self._unsaid, self._notice_at = False, now + (members / NOTICES_PER_S if members > FEW else 0.0)
        if waiting.what:
            self._log(f"waiting for {waiting}")
        self._send_all(self._waiting.notice())

    def _open_round(self, now: float) -> None:
        ledger = self.ledger
        members = sorted(self._roster.trainers(), key=lambda p: ledger.members[p.session].peer)
        peers = {p.session: ledger.members[p.session].peer for p in members}
        rations = gathering.share_out(self.spec, list(peers.values()), self._pace)
        wants = [
            (p.session, max(0, rations[peers[p.session]].lease - (total(ledger.members[p.session].lease) - p.pending)))
            for p in members
        ]
        record = RoundOpened(
            ledger.next_round,
            0,
            0,
            ledger.version,
            tuple(p.session for p in members),
            tuple(ledger.grants(wants)),
            sum(ration.quota for ration in rations.values()) * self.spec.data.sequence_length,
            expectations.gather_s(self.spec, [p.heartbeat.tokens_per_s for p in members]),
        )
        self._journal_reports()
        self._journal(record)
        self.round = Round(record, now)
        self.round.quotas = {session: rations[peer].quota for session, peer in peers.items()}
        gathering.prepare(self.spec, self.round, peers, self._roster.presences, self._pace)
        self.round.relabelled = self._backoff.in_a_row > 0
        self.round.leases = {session: total(ledger.members[session].lease) for session in peers}
        self.round.explain_at = now + max((SILENCE_S, *self.round.limits.values()))
        self._enough_since = None
        for presence in members:
            self._send_open(presence.session, self.round)
        if ledger.version == 0:
            self._ask_evaluation(0)
        self._gather(self.round, now)

    def _send_open(self, session: int, round_: Round) -> None:
        opened = round_.opened
        self._send(
            session,
            Open(
                opened.round,
                opened.group,
                opened.fragment,
                opened.base,
                tuple(self.ledger.members[session].lease),
                round_.quotas[session],
                self.ledger.committed_tokens,
                sum(round_.quotas.values()) * self.spec.data.sequence_length,
                len(opened.members),
                StopRule(self.spec.round.stop),
                self.spec.round.seconds,
            ),
        )

    def _ready(self, presence: Presence, said: Ready, now: float) -> None:
        round_ = self.round
        if round_ is None or not self._is_current(said.round, round_) or presence.session not in round_.members:
            self.stale += 1
            return
        if round_.state is not RoundState.GATHERING:
            return
        peer, leased = self.ledger.members[presence.session].peer, total(self.ledger.members[presence.session].lease)
        samples = min(max(0, said.samples), leased)
        weight = samples * self.spec.data.sequence_length
        if presence.session not in round_.ready_at:  # said again, it is neither measured nor remarked upon again
            name = self._roster.name(presence.session)
            if said.weight != weight:
                self._log_of(peer, f"{name} claims {said.weight} tokens, its lease allows {weight}")
            if said.note:
                self._log_of(peer, f"{name} contributes nothing to round {round_.id}: {said.note}")
            round_.ready_at[presence.session] = now
            round_.explain_at = min(round_.explain_at, now + SILENCE_S)
            pace = self._pace[round_.peers[presence.session]]
            gathering.note_ready(self.spec, round_, presence.session, said, now, pace)
        norm = gathering.within(said.norm, LARGEST_NORM)
        round_.ready[presence.session] = replace(said, samples=samples, weight=weight, norm=norm)

    def _is_current(self, said: int, round_: Round) -> bool:
        """Whether a message about round `said` is about the round in flight."""
        return said == round_.id

    def _part_closed(self, presence: Presence, said: PartClosed, now: float) -> None:
        round_ = self.round
        if round_ is None or round_.state is not RoundState.REDUCING or not self._is_current(said.key.round, round_):
            self.stale += 1
            return
        peer = self.ledger.members[presence.session].peer
        if why_not := round_.close_part(peer, said):
            self.stale += 1
            if not round_.why_unasked(peer, said.key):  # this was its only word, and it cannot be true
                self._accuse(round_, peer, set(round_.collectors.values()) - {presence.session}, why_not, now)
            return
        for refused in sorted((set(said.refused) & round_.weights.keys()) - set(said.contributors) - round_.refused):
            round_.refused.add(refused)
            self._log(f"{refused} was refused in part {said.key.part} of round {round_.id}: not finite or not decodable", "warning")
        if round_.decided():
            round_.decided_at = now

    def _have(self, presence: Presence, said: Have, now: float) -> None:
        round_ = self.round
        if round_ is None or round_.state is not RoundState.REDUCING or not self._is_current(said.round, round_):
            self.stale += 1
            return
        round_.hold(presence.session, said)
        round_.heard_at[presence.session] = now

    def _complaint(self, presence: Presence, said: Complaint, now: float) -> None:
        """Two members could not exchange bulk bytes: evidence about the dialled one, whose open parts others reduce. A member that
        alone could not reach two of them is taken to be the one that is cut off."""
        complainer = self.ledger.members[presence.session].peer
        if said.peer not in self.ledger.contributions:
            self.stale += 1
            return
        self._log_of(complainer, f"{complainer} could not exchange data with {said.peer}: {said.reason}")
        round_ = self.round
        if round_ is None or round_.state is not RoundState.REDUCING or not self._is_current(said.round, round_):
            self.stale += 1  # that round's streams end with it
            return
        accused = self.ledger.member_of(said.peer)
        if accused is None or accused.session == presence.session or said.peer in round_.excluded:
            return
        if round_.collectors.get(complainer) != presence.session or round_.collectors.get(said.peer) != accused.session:
            return  # one of the two is another membership than this round's
        if round_.cannot_reach(complainer, said.peer, now):
            dialled = self._roster[accused.session]
            dialled.complaints |= round_.believed(said.peer)
            if dialled.way.reach is Reach.PROVEN and not dialled.way.under_test:
                self._test_way(dialled)
        elif complainer not in round_.lost:
            for other in self._roster:  # what somebody else says as well stays said
                if round_.complainers(self._roster.peer(other.session)) <= {complainer}:
                    other.complaints.discard(complainer)
            round_.cut_off(complainer, now)
            self._contributor_lost(round_, complainer, f"alone could not reach {', '.join(sorted(round_.unreached[complainer]))}")

    def _contributor_lost(self, round_: Round, peer: PeerId, why: str) -> None:
        """The round goes on: what this peer had sent whole counts, what it had not closed others reduce."""
        if peer in round_.weights:
            for other in round_.collectors.values():
                self._send(other, ContributorLost(round_.id, peer))
        self._log(f"round {round_.id} goes on without {peer}, which {why}")

    def _repair(self, round_: Round, now: float) -> None:
        """Redo what is lost, and only that; let members fetch from each other what one alone holds."""
        if now < round_.repair_at:
            return
        redo = round_.to_redo(now)
        for holders, slots in round_.to_spread(now).items():
            fresh = [slot for slot in slots if slot not in round_.spread_at]
            redo += [slot for slot in slots if slot in round_.spread_at]  # they were asked for in vain
            if fresh and self._spread(round_, holders, fresh):
                round_.spread_at.update(dict.fromkeys(fresh, now))
            else:
                redo += fresh
        round_.looked(now)
        if redo:
            self._redo(round_, redo, now)

    def _spread(self, round_: Round, holders: frozenset[int], slots: list[Slot]) -> bool:
        """Whether members could be told to fetch these parts from the only ones who hold them; who cannot be dialled pushes."""
        roster = self._roster
        lacking = sorted(set(round_.collectors.values()) - holders)
        reached = {s for s in holders if roster.dialable(s) and not round_.is_out(roster.peer(s))}
        contacts = roster.contacts(0, only_active=False, among=reached)
        if not contacts:
            lacking = [session for session in lacking if roster.address(session)]
            pushers = [session for session in sorted(holders) if roster.connection_of(session) is not None]
            contacts = tuple(Contact(roster.peer(session), "") for session in pushers)
            for session in lacking:
                for pusher in pushers:
                    self._send(pusher, Push(Contact(roster.peer(session), roster.address(session))))
        parts = tuple(Held(*slot, round_.decisions[slot].attempt, round_.decisions[slot].digest) for slot in slots)
        for session in lacking:
            self._send(session, Fetch(round_.id, parts, contacts))
        away = any(roster.connection_of(session) is None for session in holders)  # expected back within grace
        return bool(contacts and lacking) or away

    def _redo(self, round_: Round, slots: list[Slot], now: float) -> None:
        """Plan these parts again, as the next attempt, for those who are still in the round."""
        left = round_.weights.keys() - round_.lost
        if not left:
            return self._abandon(round_, "no data: every contributor was lost", now)
        links = [
            replace(link, reduces=link.reduces and not round_.is_out(link.contact.peer))
            for link in self._links(round_.collectors, set(left))
        ]
        before = {slot: round_.reducer_of[slot] for slot in slots}
        ranges = self._shares(len(slots), links)
        if not ranges:
            return self._abandon(round_, "no member that is left can be dialled by the others", now)
        shares = regrouped(
            {slot: replace(share, attempt=before[slot].attempt + 1) for share in ranges for slot in slots[share.start : share.stop]}
        )
        round_.redo(shares, now)
        names = ", ".join(sorted({share.reducer.peer for share in before.values()}))
        self._log(f"round {round_.id}: {len(slots)} parts of {names} are reduced again by {len(ranges)} others")
        for session in round_.collectors.values():
            self._send(session, Replan(round_.id, tuple(shares)))
        return None

    def _advance_round(self, round_: Round, now: float) -> None:
        if round_.state is RoundState.GATHERING:
            self._gather(round_, now)
        if round_.state is RoundState.REDUCING and round_.collectors:
            self._repair(round_, now)
        if round_.state is RoundState.REDUCING:
            limits = round_.deadlines
            if round_.may_commit(now, limits.delivery_s):
                self._commit(round_, now)
            elif not round_.collectors:
                self._abandon(round_, "every member was lost", now)
            elif contradiction := round_.contradiction():
                decision, witnesses = contradiction
                reducer = round_.reducer_of[decision.section, decision.part].reducer.peer
                what = f"it sent other bytes of part {decision.part} than it reported"
                self._accuse(round_, reducer, witnesses, what, now)
            elif now >= round_.hurried_at + limits.reduce_s:
                self._abandon(round_, f"no commit within {round(limits.reduce_s, 1):g} s of its plan", now)

    def _accuse(self, round_: Round, reducer: PeerId, witnesses: set[int], what: str, now: float) -> None:
        """A reducer's report cannot be true: it reduces no more while it is here, and others reduce its parts of this round."""
        accused = self.ledger.member_of(reducer)
        if accused is not None:
            self._roster[accused.session].complaints |= {self.ledger.members[session].peer for session in witnesses}
        self._log(f"reducer {reducer} reported what cannot be in round {round_.id}: {what}", "warning")
        round_.undecide(reducer)
        round_.exclude(reducer, now)
        self._repair(round_, now)

    def _gather(self, round_: Round, now: float) -> None:
        if not round_.members:
            return self._abandon(round_, "every member was lost", now)
        late = self._look(round_, now)
        if not self.all_are_ready(round_, round_.members) and not (late and len(round_.ready) >= self.spec.run.min_peers):
            return None
        away = [p for p in map(self._roster.__getitem__, round_.ready) if p.standing is not Standing.ACTIVE or p.connection is None]
        if any(p.connection is None or not late for p in away):
            return None  # it was ready, and would not hear the plan: its stream is expected back within grace, its word soon after
        for presence in away:
            round_.members.discard(presence.session)
            del round_.ready[presence.session]
        contributions = [
            Contribution(self.ledger.members[session].peer, ready.weight)
            for session, ready in round_.ready.items()
            if ready.weight > 0
        ]
        if not contributions:
            return self._abandon(round_, "no data: every member's weight is 0", now)
        for session in gathering.note_late(round_, self._roster.presences, now, self._pace):
            waited = now - round_.opened_at
            self._log(
                f"round {round_.id} goes on without {self._roster.name(session)}, not ready after {waited:.1f} s: "
                "what it trained counts in a later round"
            )
        self._plan(round_, contributions, now)
        return None

    def _look(self, round_: Round, now: float) -> bool:
        """Ask for what they have those who are late. Whether nobody is waited for any more."""
        hurry = self.ledger.stopping is not None
        seen = (len(round_.members), len(round_.ready), len(round_.wrapped), hurry)
        if seen == round_.seen and now < round_.look_again_at:
            return round_.late
        outlook = gathering.look(self.spec, round_, self._roster.presences, now, hurry)
        for session in sorted(outlook.wrap):
            round_.wrapped[session] = now
            self._send(session, Wrap(round_.id))
        round_.seen, round_.look_again_at = (*seen[:2], len(round_.wrapped), hurry), outlook.look_again_at
        round_.late, round_.looked_at = outlook.late, now
        return outlook.late

    def all_are_ready(self, round_: Round, members: set[int]) -> bool:
        """Each current member has reported: these members, not so many."""
        return members <= round_.ready.keys()

    def _plan(self, round_: Round, contributions: list[Contribution], now: float) -> None:
        ledger = self.ledger
        assert ledger.origin is not None
        collectors = {
            ledger.members[p.session].peer: p.session
            for p in self._roster.active()
            if p.session in round_.ready or p.version == ledger.version
        }
        links = self._links(collectors, {contribution.peer for contribution in contributions})
        shares = self._shares(ledger.origin.layout.fragments[0].parameters, links)
        if not shares:
            return self._abandon(round_, "no member can be dialled by the others", now)
        round_.deadlines = self._deadlines(round_, [c.peer for c in contributions], list(collectors))
        plan = Plan(
            round_.id,
            ledger.term,
            round_.opened.group,
            round_.opened.fragment,
            round_.opened.base,
            plan_order(contributions, {link.contact.peer: link.up_bytes_s for link in links}),
            tuple(sorted(collectors)),
            tuple(shares),
            round_.deadlines.part_s,
        )
        sessions = {ledger.members[session].peer: session for session in round_.ready}
        round_.begin_reducing(plan, collectors, sessions, now)
        for session in collectors.values():
            self._send(session, plan)
        return None

    def _shares(self, parts: int, links: list[Link]) -> list[Share]:
        """Who reduces how many of so many parts."""
        codec = self.spec.codec
        sizes = [expectations.bytes_per_value(name, codec.block) for name in (codec.send, codec.return_)]
        return planned_shares(parts, links, Section.PARAMETERS, sent=sizes[0], returned=sizes[1])

    def _links(self, collectors: dict[PeerId, int], contributors: set[PeerId]) -> list[Link]:
        """The links that a plan has to do with. Who is alone reduces for itself and needs no dialling."""
        links = []
        for peer, session in sorted(collectors.items()):
            beat = self._roster[session].heartbeat
            contact = Contact(peer, self.ledger.members[session].address)
            reduces = len(collectors) == 1 or self._roster.dialable(session)
            links.append(Link(contact, beat.up_bytes_s, beat.down_bytes_s, peer in contributors, reduces=reduces))
        return links

    def _deadlines(self, round_: Round, contributors: list[PeerId], collectors: list[PeerId]) -> Limits:
        """How long the round may reduce and deliver, from what these members needed lately."""
        timing, least_s = self.spec.timing, self.spec.timing.heartbeat_s
        part_s = self._pace.part_limit(contributors, timing.part_s, least_s, self._backoff.in_a_row)
        quorum = self.spec.round.gather == "quorum"
        delivery_s = self._pace.delivery_limit(collectors, timing.delivery_s, least_s, quorum)
        # Contributions, the same again for results, and as much for whatever else was not measured.
        patience_s = max(3 * part_s + delivery_s, timing.lost_after_s + timing.grace_s)  # who stands still is forgiven as long
        reduce_s = min(timing.reduce_s, patience_s) if part_s < timing.part_s else timing.reduce_s
        gather_s = max((round_.limits[s] + round_.graces[s] for s in round_.limits), default=timing.gather_s)
        return Limits(min(gather_s, timing.gather_s), part_s, reduce_s, delivery_s)

    def _showings(self, round_: Round) -> tuple[Showing, ...]:
        """What each member did in a round that is over."""
        shown, parts = [], round_.inclusions()
        for session, peer in round_.peers.items():
            ready = round_.ready.get(session)
            took = round_.ready_at[session] - round_.opened_at if ready is not None else 0.0
            weight, norm = (ready.weight, ready.norm) if ready is not None else (0, 0.0)
            outcome = round_.outcome(session, parts[peer], session in self._roster)
            shown.append(Showing(peer, outcome, weight, took, round_.limits[session], norm))
        return tuple(shown)

    def _commit(self, round_: Round, now: float) -> None:
        ledger, spec = self.ledger, self.spec
        assert round_.plan is not None
        assert round_.decided_at is not None
        contributions = tuple(round_.contributors())
        slots = sorted(round_.reducer_of, key=lambda slot: (slot[0].value, slot[1]))
        parts, inclusions = brief(round_.decisions[slot] for slot in slots)
        length = spec.data.sequence_length
        spent = tuple(Spent(round_.sessions[c.peer], c.weight // length, c.weight) for c in contributions)
        included = {item.session for item in spent}
        round_.move(RoundState.COMMITTED)
        holders = round_.complete()
        gathering.note_commit(round_, holders, now, self._pace)
        record = RoundCommitted(
            ledger.version + 1,
            round_.id,
            round_.opened.group,
            round_.opened.fragment,
            round_.opened.base,
            parts,
            contributions,
            spent,
            ledger.committed_tokens + sum(item.weight for item in spent),
            spec.outer.lr,
            spec.outer.momentum,
            round_.planned_at - round_.opened_at,
            round_.decided_at - round_.planned_at,
            now - round_.decided_at,
            expectations.plan_bytes(round_.plan, ledger.origin.layout.values if ledger.origin else 0, spec),
            self._showings(round_),
            round_.deadlines,
            inclusions,
        )
        for share in round_.reducer_of.values():
            member = ledger.member_of(share.reducer.peer)
            if member is not None:
                self._roster[member.session].complaints.clear()
        self._journal(record)
        self.round = None
        self._backoff.in_a_row = 0
        for session, ready in round_.ready.items():
            if session in self._roster:
                self._roster[session].pending = 0 if session in included else ready.samples
        contacts = self._roster.contacts(0, (), only_active=False, among=holders or set(round_.collectors.values()))
        message = self._commit_message(record, contacts)
        for presence in self._roster:
            if presence.session in holders:
                presence.promised = record.version
            if not self._strays(presence, presence.claim[0]):  # no entry fits on a state that was never the run's
                self._send(presence.session, message)
        if record.committed_tokens >= spec.end_tokens and ledger.stopping is None:
            self._journal(RunStopping("", f"all {spec.end_tokens} tokens are trained"))
        elif spec.evaluation.every and record.version % spec.evaluation.every == 0:
            self._ask_evaluation(record.version)

    def _abandon(self, round_: Round, reason: str, now: float) -> None:
        round_.move(RoundState.ABANDONED)
        self._journal(RoundAbandoned(round_.id, reason, self._showings(round_), round_.deadlines))
        self.round = None
        self._backoff.abandoned(f"round {round_.id} was abandoned: {reason}", now)
        self._log(f"round {round_.id} abandoned: {reason}")
        self._send_all(Abandoned(round_.id, reason))

    # --- evaluation and the end -------------------------------------------------------------------------------------------------

    def _ask_evaluation(self, version: int) -> None:
        """One member in turn evaluates; whoever did not answer by the next time is passed over."""
        able = sorted(p.session for p in self._roster.trainers())
        if able:
            turn = version // max(1, self.spec.evaluation.every)
            self._evaluating = (version, able[turn % len(able)])
            self._send(self._evaluating[1], Evaluate(version))

    def _evaluated(self, presence: Presence, said: Evaluated) -> None:
        if self._evaluating != (said.version, presence.session) or said.version > self.ledger.version:
            self.stale += 1
            return
        self._evaluating = None
        if said.tokens > 0:
            peer = self.ledger.members[presence.session].peer
            self._journal(PeerEvaluated(said.version, peer, said.bits_per_byte, said.tokens))
            self._log(f"version {said.version}: {said.bits_per_byte:.3f} {self.spec.data.unit}, held out, says {peer}")
        else:
            self._ask_evaluation(self.ledger.version)

    def _finish_run(self) -> None:
        stopping = self.ledger.stopping
        assert stopping is not None
        self._journal(RunEnded(self.ledger.version, stopping.reason))
        self._enough_since = None
        self._log(f"the run is over at version {self.ledger.version}: {stopping.reason}")
        self._ask_evaluation(self.ledger.version)
        for presence in self._roster:
            if presence.standing is Standing.ACTIVE:
                self._send(presence.session, Finish(self.ledger.version, stopping.reason))

    def _farewell(self, now: float) -> None:
        """Let everybody go together, so that nobody leaves while another still needs its bytes."""
        for session in sorted(self._seekers):
            if not self._may_be_handed_over(
                self._roster.peer(session), self._roster.address(session)
            ):  # nobody is left who could give it what it asked for
                self._end(session, f"cannot take part any more: the run ended at version {self.ledger.version}", now)
        if not len(self._roster):
            self._farewell_at = None
            return
        if not any(p.goodbye for p in self._roster):
            return
        if self._farewell_at is None:
            self._farewell_at = now + FAREWELL_S
        if all(p.goodbye for p in self._roster) or now >= self._farewell_at:
            lacking = f"did not get version {self.ledger.version}: the run is over, and those who hold it have left"
            for presence in self._roster:
                presence.goodbye = True
                self._end(presence.session, "left: the run is over" if presence.standing is Standing.ACTIVE else lacking, now)
            self._farewell_at = None

    # --- operators --------------------------------------------------------------------------------------------------------------

    def _answer(self, command: AdminCommand, by: PeerId, now: float) -> AdminReply | AdminError:
        ledger = self.ledger
        match command:
            case GetStatus():
                return views.status(self.spec, ledger, self.round, self._roster, self._waiting)
            case GetPeers(after):
                return views.peers(ledger, self._roster, now, after)
            case GetRounds(limit):
                return views.rounds(ledger, limit)
            case GetSettings():
                return settings.listed(self._initial, ledger.settings)
            case GetLeaderboard(limit):
                return views.leaderboard(ledger, limit)
            case GetEvents() | MakeInvite() | GetInvites() | RevokeInvite() | Grant():
                return AdminError(f"{type(command).__name__} is answered by the coordinator's shell")
            case Pause() | Resume() | Stop() | Kick() | Ban() | Unban() | Drain() | Change():
                return self._obey(verbs.rule(command, by, self._initial, ledger, self._roster), now)
            case _:
                assert_never(command)

    def _obey(self, ruling: verbs.Ruling, now: float) -> Done | AdminError:
        """Make true what an operator was answered."""
        for record in ruling.records:
            self._journal(record)
            if isinstance(record, PeerBanned | PeerUnbanned):
                self._bans_changed()
            elif isinstance(record, SettingChanged):
                self.spec = settings.changed(self._initial, self.ledger.settings)
        for session, reason in ruling.ends:
            self._end(session, reason, now, may_return=False)
        return ruling.reply

    def _bans_changed(self) -> None:
        """Everybody refuses them at once: the shell, and every member."""
        self._effects.append(Bar(frozenset(self.ledger.banned)))
        self._barred = Barred(tuple(sorted(self.ledger.banned)))
        self._send_all(self._barred)

    def _send_off(self, now: float) -> None:
        """Members that are drained leave as soon as no round needs them."""
        if not self.ledger.draining:
            return
        draining = [p for p in self._roster if p.session in self.ledger.draining and p.connection is not None]
        busy = {*self.round.members, *self.round.collectors.values()} if self.round is not None else set()
        for presence in draining:
            if presence.sent_off_at is not None and now >= presence.sent_off_at + SEND_OFF_S:
                self._end(presence.session, "was drained by an operator, and did not leave by itself", now, may_return=False)
            elif presence.sent_off_at is None and presence.session not in busy:
                presence.sent_off_at = now
                self._look_out(presence)
                if presence.minor >= SINCE_MINOR[Leave]:
                    self._send(presence.session, Leave("an operator drains it"))
                else:
                    self._end(presence.session, "was drained by an operator", now, may_return=False)

    # --- small questions and tools ----------------------------------------------------------------------------------------------

    def _commit_message(self, record: RoundCommitted, contacts: tuple[Contact, ...]) -> Commit:
        return Commit(
            record.version,
            record.round,
            record.group,
            record.fragment,
            record.base,
            record.parts,
            record.committed_tokens,
            record.outer_lr,
            record.outer_momentum,
            contacts,
            record.inclusions,
        )

    def _send(self, session: int, body: FromCoordinator) -> None:
        connection = self._roster.connection_of(session)
        if connection is None or self._roster[session].minor < SINCE_MINOR.get(type(body), 0):
            return
        if self._roster[session].minor < BRIEF_SINCE_MINOR:
            body = whole_commit(body) if isinstance(body, Commit) else whole_catch_up(body) if isinstance(body, CatchUp) else body
        self._send_on(connection, session, body)

    def _send_all(self, body: FromCoordinator) -> None:
        """To every member. One object for all streams is packed once."""
        for presence in self._roster:
            self._send(presence.session, body)

    def _send_on(self, connection: int, session: int, body: FromCoordinator) -> None:
        self._effects.append(Send(connection, Envelope(session, self.ledger.term, body)))

    def _journal(self, record: Record) -> None:
        self._effects.append(Journal(record))
        self.ledger.apply(record)

    def _log(self, text: str, level: str = "info") -> None:
        self._effects.append(Log(text[: claims.LINE_LIMIT], level))

    def _log_of(self, peer: PeerId, text: str, level: str = "warning") -> None:
        """A line that a peer causes, as often as it likes."""
        self._effects.append(Log(text[: claims.LINE_LIMIT], level, peer))

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
