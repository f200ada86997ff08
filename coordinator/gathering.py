"""When gathering closes: how much each member is asked to train, for whom the round waits, and when it stops waiting.

Three questions, all pure. `share_out`: which quota and lease each member gets, by stop rule and measured speed. `Gathering.limits`:
after how many seconds each member is asked for what it has (Wrap). `look`: whom to ask now, whether gathering is over, and when to
look again.

Rules. A member is late by its own measure, never by another's, unless the run asks for a quorum. Whoever is late is asked for what
it has and given time for one more inner step; its work counts with the weight that it has. Whoever does not answer in that time is
left out of this round only: its work stays pending and comes with the next. Who is still catching up after it was left out is not
waited for. Whatever was measured, timing.gather_s is the end. Source of the quorum: dynamic backup workers, arXiv 2004.14696, with
tokens committed per second as the gain; late work is not lost here, so that waiting buys only what it adds until then.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from shoal.coordinator.pace import Pace, PeerPace, Recent
from shoal.coordinator.roster import Presence
from shoal.coordinator.rounds import Round
from shoal.protocol.messages import Heartbeat, PeerId, Ready
from shoal.protocol.spec import RunSpec

AHEAD = 1.5
"""Samples leased per sample expected where time ends the training, so that a peer that got faster does not run dry."""
FASTEST = 1e12
"""Tokens per second; who claims more, or less than one in a thousand seconds, is taken to have said nothing of its speed."""
SPEEDUP = 4.0
"""A claim to have trained more than this many times faster than the coordinator's own clock says is not believed."""


def within(value: float, largest: float) -> float:
    """A peer's claim as a number that does no harm: from 0 to `largest`."""
    return min(max(0.0, value), largest) if math.isfinite(value) else 0.0


def with_usable_speed(beat: Heartbeat) -> Heartbeat:
    """A heartbeat whose speed can be calculated with."""
    speed = beat.tokens_per_s
    return beat if 1e-3 <= speed <= FASTEST or speed == 0.0 else replace(beat, tokens_per_s=0.0)


@dataclass(frozen=True)
class Ration:
    """What one member is asked to train in a round, in samples."""

    quota: int
    """Expected of it."""
    lease: int
    """At its disposal."""


def share_out(spec: RunSpec, members: Sequence[PeerId], pace: Pace) -> dict[PeerId, Ration]:
    """Quota and lease of each member. Who was never measured is taken for average."""
    rule, usual, batch = spec.round, spec.samples_per_round, spec.train.batch
    if rule.stop == "steps":
        return dict.fromkeys(members, Ration(usual, usual))
    known = {peer: pace[peer].speed.median for peer in members if len(pace[peer].speed)}
    if rule.stop == "time":
        quotas = {peer: max(batch, round(known[peer] * rule.seconds)) if peer in known else usual for peer in members}
        return {peer: Ration(quota, math.ceil(AHEAD * quota)) for peer, quota in quotas.items()}
    average = statistics.mean(known.values()) if known else 1.0
    speeds = {peer: known.get(peer, average) for peer in members}
    total = sum(speeds.values())
    # Any one of them could reach the target alone, if all others were lost.
    return {
        peer: Ration(max(1, round(rule.samples * (speed / total if total else 1 / len(speeds)))), rule.samples)
        for peer, speed in speeds.items()
    }


def quorum_size(turns: Sequence[float | None], overhead_s: float, least: int) -> int:
    """How many of these members (seconds that each needs, None: not known) a round waits for: at least `least`, and more as long as
    that raises the work committed per second, where those that are not waited for contribute what they have by then."""
    known = sorted(max(turn, 1e-9) for turn in turns if turn is not None)
    best, chosen = 0.0, min(least, len(turns))
    slower = sum(1 / turn for turn in known)
    for count, until in enumerate(known, start=1):
        slower -= 1 / until
        rate = (count + until * slower) / (until + overhead_s)
        if count >= least and rate >= best * (1 - 1e-9):
            best, chosen = rate, count
    return chosen


def member_limit(spec: RunSpec, pace: PeerPace, grace_s: float) -> float:
    """Seconds from the opening after which this member is asked for what it has."""
    end = max(spec.timing.gather_s - grace_s, spec.timing.gather_s / 2)
    if spec.round.stop == "samples":
        return end  # the others may have to train its share
    return pace.turn.allowance(end, spec.round.seconds + spec.timing.heartbeat_s)


def grace(spec: RunSpec, pace: PeerPace, presence: Presence) -> float:
    """Seconds that this member gets to answer a Wrap: the inner step in hand, and publishing."""
    timing, limit = spec.timing, spec.timing.gather_s / 2
    if len(pace.answer):
        return pace.answer.allowance(limit, min(limit, timing.heartbeat_s))
    tokens_per_s = presence.heartbeat.tokens_per_s
    step_s = spec.train.batch * spec.data.sequence_length / tokens_per_s if tokens_per_s > 0 else 0.0
    return min(limit, 2 * step_s + timing.heartbeat_s)


def together(spec: RunSpec, round_: Round, presences: Mapping[int, Presence], now: float) -> tuple[float, float]:
    """Samples that the members have by now, those in training estimated from their last heartbeat, and how many per second more.

    What is only claimed counts within limits: no more than the member was leased, nor half of the target while there are others, at
    a speed not beyond SPEEDUP times the middle one. So nobody ends the round for all by a claim.
    """
    done, rate = float(sum(ready.samples for ready in round_.ready.values())), 0.0
    training = [presences[session] for session in sorted(round_.members - round_.ready.keys())]
    beats = [presence for presence in training if presence.heartbeat.round == round_.id and presence.connection is not None]
    if not beats:
        return done, rate
    middle = statistics.median(presence.heartbeat.tokens_per_s for presence in beats)
    largest = spec.round.samples / 2 if len(round_.members) > 1 else math.inf
    for presence in beats:
        beat = presence.heartbeat
        speed = min(beat.tokens_per_s, SPEEDUP * middle) / spec.data.sequence_length
        claim = beat.samples + speed * min(max(0.0, now - presence.beat_at), 2 * spec.timing.heartbeat_s)
        most = min(largest, round_.leases[presence.session])
        done += min(claim, most)
        rate += speed if claim < most else 0.0
    return done, rate


def prepare(spec: RunSpec, round_: Round, peers: Mapping[int, PeerId], presences: Mapping[int, Presence], pace: Pace) -> None:
    """Write down for a round that opens how long its members (by session) may take, and how many are enough."""
    round_.peers = dict(peers)
    for session, peer in peers.items():
        round_.graces[session] = grace(spec, pace[peer], presences[session])
        round_.limits[session] = member_limit(spec, pace[peer], round_.graces[session])
        if pace[peer].absent:
            round_.absent.add(session)
    present = [pace[peer].turn for session, peer in peers.items() if session not in round_.absent]
    turns = [turn.median if len(turn) else None for turn in present]
    least = max(spec.run.min_peers, math.ceil(spec.round.quorum * len(present)))
    round_.quorum = quorum_size(turns, pace.overhead.median, min(least, len(present)))


def note_ready(spec: RunSpec, round_: Round, session: int, said: Ready, now: float, pace: PeerPace) -> None:
    """Learn from a member's Ready how fast it is. What it says of its own speed is believed within limits."""
    pace.absent = 0
    asked = round_.wrapped.get(session)
    if asked is not None:
        pace.answer.add(now - asked)
    trained = min(said.steps * spec.train.batch, spec.round.samples or round_.quotas[session] * AHEAD)
    if trained <= 0:
        return
    waited = now - round_.opened_at
    if spec.round.stop == "steps" and not round_.relabelled:
        pace.turn.add(waited * max(1.0, round_.quotas[session] / trained))
    elif asked is None and not round_.relabelled:
        pace.turn.add(waited)
    if said.train_s < math.inf:
        pace.speed.add(trained / max(said.train_s, waited / SPEEDUP, 1e-3))


def note_late(round_: Round, presences: Mapping[int, Presence], now: float, pace: Pace) -> list[int]:
    """Gathering closes: whom it closes without, which is learnt from."""
    late = sorted(round_.members - round_.ready.keys())
    for session in late:
        peer = pace[round_.peers[session]]
        behind = session in round_.absent and presences[session].version < round_.opened.base
        if session in round_.wrapped and not behind:
            peer.answer.add(now - round_.wrapped[session])
        peer.absent += 1
    return late


def note_commit(round_: Round, complete: Set[int], now: float, pace: Pace) -> None:
    """Learn from a round that commits, with everything at the sessions in `complete`, how long reducing and delivering took and for
    whom patience was too short."""
    assert round_.decided_at is not None
    assert round_.plan is not None
    pace.overhead.add(now - round_.planned_at)
    parts = round_.inclusions()
    for contribution in round_.plan.contributions:
        peer = pace[contribution.peer]
        if parts[contribution.peer] == len(round_.reducer_of):
            peer.reduce.add(round_.decided_at - round_.planned_at)
            peer.missed = 0
        elif contribution.peer in round_.collectors:
            peer.missed += 1
    for name, session in round_.collectors.items():
        until = round_.heard_at.get(session, now) if session in complete else now
        pace[name].delivery.add(until - round_.decided_at)


@dataclass(frozen=True)
class Outlook:
    """What is to be done about a round that gathers."""

    wrap: frozenset[int] = frozenset()
    """Members to be asked for what they have."""
    late: bool = False
    """Nobody is waited for any more, if enough are ready."""
    look_again_at: float = math.inf


def look(spec: RunSpec, round_: Round, presences: Mapping[int, Presence], now: float, hurry: bool) -> Outlook:
    """`hurry`: nobody needs to train on (the run stops)."""
    end = round_.opened_at + spec.timing.gather_s
    waiting = round_.members - round_.ready.keys()
    times = [end] if end > now else []
    everybody = hurry or now >= end
    if spec.round.stop == "samples" and not everybody:
        done, rate = together(spec, round_, presences, now)
        everybody = done >= spec.round.samples
        if not everybody and rate > 0:
            # No sooner than a heartbeat may change the estimate much; see hivemind's progress tracker.
            times.append(now + max((spec.round.samples - done) / rate, 0.05))
    ask_at, cap = quorum_ends(spec, round_)
    wrap = set()
    given_up = True
    for session in sorted(waiting):
        if session in round_.absent and presences[session].version < round_.opened.base:
            continue
        due = min(round_.opened_at + round_.limits.get(session, spec.timing.gather_s), ask_at)
        asked = round_.wrapped.get(session)
        if asked is None and (everybody or now >= due):
            wrap.add(session)
            asked = now
        if asked is None:
            times.append(due)
            given_up = False
            continue
        answer_by = asked + min(round_.graces.get(session, 0.0), cap)
        if now < answer_by:
            times.append(answer_by)
            given_up = False
    late = now >= end or (bool(waiting) and given_up)
    return Outlook(frozenset(wrap), late, min((at for at in times if at > now), default=math.inf))


def quorum_ends(spec: RunSpec, round_: Round) -> tuple[float, float]:
    """When those that are still training are asked for what they have because enough others are ready, and how many seconds of
    grace they then get at most. Never, with gather = "all"."""
    if spec.round.gather != "quorum" or len(round_.ready) < round_.quorum:
        return math.inf, math.inf
    took = sorted(at - round_.opened_at for session, at in round_.ready_at.items() if session in round_.ready)[: round_.quorum]
    turns = Recent()
    for seconds in took:
        turns.add(seconds)
    least = took[-1] if took else 0.0
    return round_.opened_at + turns.allowance(spec.timing.gather_s, least), max(least, spec.timing.heartbeat_s)
