"""One simulated run, from its seed: who takes part, how rough it gets, and how it must end.

Guided tour. `Story(seed)` draws a run spec, machines and weather. `run()` lets it happen: a rough time in which everything may
fail, then calm, in which every live peer must reach the newest version and the run must go on committing within a bounded virtual
time (or, when it was stopped, must end with every peer gone and its model written). Whatever breaks raises Violation; `report`
puts seed and trace into words. Neighbours: `world`, `meeting`, `machine`, `judge`.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from shoal.coordinator.core import Core
from shoal.coordinator.records import RunCreated
from shoal.peer.engine import Engine
from shoal.protocol.admin import GetEvents, GetPeers, GetRounds, GetStatus, Pause, Resume, Stop
from shoal.protocol.messages import NO_VERSION, PeerId
from shoal.protocol.spec import RunSpec
from tests.simulation.judge import BURN_PAUSE_S, Judge
from tests.simulation.machine import Machine, Work
from tests.simulation.meeting import Meeting
from tests.simulation.values import Model
from tests.simulation.world import CALM, Violation, Weather, World

ROUNDS = 15
ROUGH_LIMIT_S = 900.0
CALM_LIMIT_S = 300.0
EVENT_LIMIT = 400_000
CARRIED_ROUNDS = 200
"""Entries after which a slow member's work must be in one; its slowest step takes about as long as sixty quick rounds."""
TOKENS_PER_SAMPLE = 16
DECISIONS = frozenset(("coordinator", what) for what in ("starts", "CRASH", "journals", "says"))


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    seed: int
    versions: int
    abandoned: int
    events: int
    virtual_s: float
    problem: str = ""
    trace: str = ""


def draw_weather(chance: random.Random) -> Weather:
    """A different kind of rough in every world: each fault is off, rare or frequent."""

    def level(*levels: float) -> float:
        return 0.0 if chance.random() < 0.4 else chance.choice(levels)

    return Weather(
        latency_s=chance.choice((0.01, 0.05, 0.2)),
        stream_breaks_every_s=level(60, 20, 6),
        bulk_break=level(0.01, 0.05),
        bulk_duplicate=level(0.02, 0.2),
        daemon_crash_every_s=level(90, 30, 10),
        crash_in_apply=level(0.002, 0.01),
        crash_between_effects=level(0.001, 0.005),
        machine_loss=level(0.1, 0.5),
        trainer_crash=level(0.02, 0.1),
        non_finite=level(0.02, 0.1),
        poison=level(0.003, 0.02),
        freeze_every_s=level(90, 30),
        coordinator_crash_every_s=level(120, 40, 15),
        leave_every_s=level(90, 30),
        join_every_s=level(60, 20),
        operator_every_s=level(60, 20),
        corrupt=level(0.005, 0.05),
        rot=level(0.002, 0.01),
        replay=level(0.01, 0.05),
        slow=level(0.005, 0.02),
        fetch_fails=level(0.05, 0.3),
    )


def draw_round(chance: random.Random, usual: int) -> dict[str, Any]:
    """When members stop training and for whom a round waits; `usual` samples are a round's with stop = "steps"."""
    stop = chance.choice(("steps", "steps", "time", "samples"))
    drawn: dict[str, Any] = {"stop": stop, "gather": chance.choice(("all", "quorum"))}
    if stop == "time":
        drawn["seconds"] = chance.choice((0.5, 2.0, 6.0))
    elif stop == "samples":
        drawn["samples"] = max(1, usual * chance.choice((1, 2)) // 2)
    if drawn["gather"] == "quorum":
        drawn["quorum"] = chance.choice((0.3, 0.5, 0.8, 1.0))
    return drawn


def draw_spec(chance: random.Random, peers: int, seed: int) -> RunSpec:
    """A run with short patience, so that every deadline comes up."""
    steps = chance.choice((1, 2, 4))
    batch = chance.choice((1, 2, 3))
    few = chance.random() < 0.2
    return RunSpec.of(
        run={
            "name": "simulation",
            "min_peers": chance.choice((1, 1, 2, 3)) if peers > 3 else chance.choice((1, 1, 2)),
            "total_tokens": (ROUNDS * peers * steps * batch * TOKENS_PER_SAMPLE) // 2 if few else 10**9,
        },
        train={"steps": steps, "batch": batch},
        round=draw_round(random.Random(f"round {seed}"), peers * steps * batch),
        data={"sequence_length": TOKENS_PER_SAMPLE},
        evaluation={"every": chance.choice((0, 1, 3, 10))},
        state={"keep_entries": chance.choice((1, 2, 8)), "fingerprint_every": chance.choice((1, 1, 2, 3))},
        timing={
            "heartbeat_s": 2.0,
            "lost_after_s": 10.0,
            "grace_s": chance.choice((0.0, 2.0, 5.0)),
            "gather_s": chance.choice((15.0, 60.0)),
            "reduce_s": chance.choice((30.0, 90.0)),
            "part_s": chance.choice((5.0, 20.0)),
            "delivery_s": chance.choice((3.0, 10.0)),
            "join_wait_s": chance.choice((0.0, 0.5)),
        },
    )


class Story:
    """A world with its people, and what happens to them."""

    def __init__(
        self,
        seed: int,
        *,
        weather: Weather | None = None,
        peers: int | None = None,
        make_core: Callable[[RunSpec], Core] = Core,
        make_engine: Callable[..., Engine] = Engine,
        machine_class: type[Machine] = Machine,
        rounds: int = ROUNDS,
    ) -> None:
        chance = random.Random(f"story {seed}")
        self.rounds = rounds
        self.world = World(seed, weather or draw_weather(chance))
        count = peers or chance.choice((3, 3, 4, 4, 5, 6, 8, 12, 16))
        self.model = Model(chance.choice((1, 2, 3, 4)))
        self.spec = draw_spec(chance, count, seed)
        self.judge = Judge(self.world, self.model, TOKENS_PER_SAMPLE)
        records = [RunCreated(self.spec.run.name, self.spec.to_json())]
        self.meeting = Meeting(self.world, self.judge, list(records), lambda: make_core(self.spec))
        self.machines: dict[PeerId, Machine] = {}
        self.judge.machines = self.machines
        self.meeting.answers_at = lambda peer, address: self.machines[peer].serves_at(address)
        self.machine_class, self.make_engine = machine_class, make_engine
        nat, helpers = chance.choice(((0.0, 0), (0.0, 0), (0.3, 0), (0.3, 1), (1.0, 1), (1.0, 2)))
        self.dialable = [chance.random() >= nat or (index == 0 and not helpers) for index in range(count + 8)]
        for index in range(count):
            self._add_machine(index)
        for index in range(helpers):
            self._add_machine(index, helper=True)
        self.rough = True

    def _add_machine(self, index: int, helper: bool = False) -> Machine:
        peer = f"{'help' if helper else 'peer'}{index:02d}"
        machine = self.machine_class(
            self.world,
            self.judge,
            self.meeting,
            self.machines,
            peer,
            self.model,
            self.spec.run.name,
            self.spec.state.keep_entries,
            TOKENS_PER_SAMPLE,
            dialable=helper or self.dialable[index % len(self.dialable)],
            helper=helper,
            make_engine=self.make_engine,
        )
        self.machines[peer] = machine
        return machine

    # --- the run ----------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Rough, then calm. Raises Violation."""
        world = self.world
        self.meeting.start()
        for machine in self.machines.values():
            world.after(world.random.uniform(0, 3) if world.random.random() < 0.8 else world.random.uniform(5, 60), machine.start)
        weather = world.weather
        for every_s, fault in (
            (weather.stream_breaks_every_s, self._break_stream),
            (weather.daemon_crash_every_s, self._crash_daemon),
            (weather.coordinator_crash_every_s, self._crash_coordinator),
            (weather.freeze_every_s, self._freeze),
            (weather.leave_every_s, self._leave),
            (weather.join_every_s, self._join),
            (weather.operator_every_s, self._operate),
        ):
            if every_s:
                world.after(world.random.expovariate(1 / every_s), self._again, every_s, fault)
        self._until(lambda: self.judge.version >= self.rounds or self.over or self.judge.rot_won, ROUGH_LIMIT_S)
        self._calm_down()
        if not self.judge.rot_won:
            self._must_go_on()
        self._add_up()

    @property
    def over(self) -> bool:
        """The run ended, by the journal."""
        return self.judge.ended is not None

    def _until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Let things happen until `condition` or for `limit_s`."""
        end = self.world.now + limit_s
        while not condition():
            if not self.world.step() or self.world.now > end:
                return condition()
            if self.world.events > EVENT_LIMIT:
                raise Violation(f"more than {EVENT_LIMIT} events in {self.world.now:.0f} s: something spins")
        return True

    def _calm_down(self) -> None:
        world = self.world
        world.note("story", "CALM", f"faults stop at version {self.judge.version}")
        world.weather = replace(CALM, latency_s=world.weather.latency_s)
        self.rough = False
        self.meeting.effects_to_live = None
        self.meeting.start()
        self.meeting.frozen_until = world.now
        if not self.over:
            self.meeting.ask(Resume())
        staying = [machine for machine in self.machines.values() if not (machine.left or machine.leaving)]
        training = [machine for machine in staying if not machine.helper]
        if len(training) < max(2, self.spec.run.min_peers) or not self._survives(staying):
            staying = list(self.machines.values())
        for machine in staying:
            if not (machine.left and self.over):
                machine.crash_soon(10**9)
                world.after(world.random.uniform(0, 2) + (10 if machine.leaving else 0), machine.start)

    def _must_go_on(self) -> None:
        """Everybody reaches the newest version and the run goes on, or ends as it should."""
        start = self.judge.version
        goal = start + 3
        staying = [machine for machine in self.machines.values() if machine.alive and not machine.leaving]
        waiting = [work for machine in staying for work in self.judge.uncounted(machine)]

        def good() -> bool:
            if self.over:
                return self.judge.rot_won or all(
                    not machine.alive or self._cannot_finish(machine) for machine in self.machines.values()
                )
            if not all(work.dropped or work.spent is not None for work in waiting):
                if self.judge.version > start + CARRIED_ROUNDS and self._is_here(waiting):
                    raise Violation(f"{waiting} is in no entry after {CARRIED_ROUNDS} rounds of calm, from version {start}")
                return False
            return self.judge.version >= goal and all(
                machine.vault.version >= goal - 1
                and not machine.vault.rotten
                and (machine.helper or machine.peer in self.judge.members)
                for machine in self.machines.values()
                if machine.alive
            )

        if not self._until(good, CALM_LIMIT_S):
            if self.judge.rot_won:
                return
            rotten = [machine.peer for machine in self.machines.values() if machine.alive and machine.vault.rotten]
            alive = {machine.peer: machine.vault.version for machine in self.machines.values() if machine.alive}
            idle = [machine.peer for machine in self.machines.values() if machine.alive and machine.peer not in self.judge.members]
            ended = f", ended at {self.judge.ended.version}" if self.judge.ended else ""
            raise Violation(
                f"no progress in {CALM_LIMIT_S:.0f} s of calm: the log went from version {start} to {self.judge.version}{ended}; "
                f"live peers hold {alive}"
                + (f"; {idle} take no part" if idle else "")
                + (f"; {rotten} still hold other bytes than the log gives" if rotten else "")
            )

    def _is_here(self, waiting: list[Work]) -> bool:
        """Whether somebody whose work waits has been a member for as long as the calm lasts."""
        return any(
            self.machines[work.peer].alive and self.judge.session_of.get(work.peer) == work.session
            for work in waiting
            if not work.dropped and work.spent is None
        )

    def _cannot_finish(self, machine: Machine) -> bool:
        """It came back after everybody who held the last version had left."""
        assert self.judge.ended is not None
        return machine.vault.version < self.judge.ended.version and not any(
            (other.serves or machine.serves) and other.alive and other.vault.version == self.judge.ended.version
            for other in self.machines.values()
        )

    def _add_up(self) -> None:
        """At the end every piece of work is where it belongs."""
        for machine in self.machines.values():
            if machine.vault.version != 0:  # version 0 may be one that a peer built for itself and was told to replace
                self.judge.compare(machine)
            self.judge.account(machine)
            self.judge.nothing_is_missing(machine)

    # --- faults -----------------------------------------------------------------------------------------------------------------

    def _again(self, every_s: float, fault: Callable[[], None]) -> None:
        if not self.rough:
            return
        fault()
        self.world.after(self.world.random.expovariate(1 / every_s), self._again, every_s, fault)

    def _pick(self) -> Machine | None:
        alive = [machine for machine in self.machines.values() if machine.alive]
        return self.world.random.choice(alive) if alive else None

    def _break_stream(self) -> None:
        machine = self._pick()
        if machine is not None and machine.stream is not None:
            self.world.note("network", "BREAKS", machine.peer)
            machine.stream.break_down()

    def _crash_daemon(self) -> None:
        machine = self._pick()
        if machine is None:
            return
        burns = self.world.chance(self.world.weather.machine_loss) and self.world.now > self.judge.burned_at + BURN_PAUSE_S
        others = [other for other in self.machines.values() if other is not machine]
        if burns and self._survives(others) and not self._is_counted_on(machine, others):
            self.judge.burned_at = self.world.now
            machine.burn()
        elif self.world.random.random() < 0.5:
            machine.die()
        else:
            machine.crash_soon(self.world.random.randint(0, 5))
        self._restart_later(machine)

    def _restart_later(self, machine: Machine) -> None:
        self.world.after(self.world.random.choice((0.2, 1.0, 3.0, 8.0, 15.0, 40.0)), self._restart, machine)

    def _restart(self, machine: Machine) -> None:
        if not machine.left and self.rough:
            machine.start()

    def _is_counted_on(self, machine: Machine, others: list[Machine]) -> bool:
        """Whether a round may be committed on this machine's word before it is missed. That, and the loss of the only other member
        at the same time, is more than a swarm without snapshots survives."""
        plan = self.judge.plans.get(self.judge.opened.round) if self.judge.opened is not None else None
        if plan is None or machine.peer not in plan.members:
            return False
        return sum(other.alive and other.peer in plan.members for other in others) < 2

    def _survives(self, machines: list[Machine]) -> bool:
        """Whether these machines still have all that was committed, and one can be dialled, to bring it to and fetch it from."""
        sound = [machine for machine in machines if self.judge.is_sound(machine.vault)]
        best = max((machine.vault.version for machine in sound), default=NO_VERSION)
        if best == NO_VERSION:
            return self.judge.version == NO_VERSION
        digests = [
            decision.digest
            for version in range(best + 1, self.judge.version + 1)
            for decision in self.judge.commits[version].decisions
        ]
        spread = all(any(machine.vault.payload(digest) is not None for machine in machines) for digest in digests)
        return spread and any(machine.address for machine in machines)

    def _crash_coordinator(self) -> None:
        if not self.meeting.alive:
            return
        if self.world.random.random() < 0.3:
            self.meeting.crash()
        else:
            self.meeting.effects_to_live = self.world.random.randint(0, 30)
        self.world.after(self.world.random.choice((1.0, 3.0, 8.0, 20.0)), self._restart_coordinator)

    def _restart_coordinator(self) -> None:
        if self.meeting.alive:  # it has not reached its last effect yet
            self.world.after(2.0, self._restart_coordinator)
            if self.rough:
                self.meeting.crash()
            return
        self.meeting.start()

    def _freeze(self) -> None:
        seconds = self.world.random.choice((0.5, 3.0, 8.0, 12.0, 25.0))
        if self.world.random.random() < 0.2:
            self.meeting.freeze(seconds)
        elif (machine := self._pick()) is not None:
            machine.freeze(seconds)

    def _leave(self) -> None:
        machine = self._pick()
        if machine is not None:
            machine.leave()

    def _join(self) -> None:
        gone = [machine for machine in self.machines.values() if not machine.alive and machine.left]
        if gone and self.world.random.random() < 0.6:
            self.world.random.choice(gone).start()
        elif len(self.machines) < 20:
            self._add_machine(len(self.machines)).start()

    def _operate(self) -> None:
        dice = self.world.random.random()
        if dice < 0.02:
            self.meeting.ask(Stop())
        elif dice < 0.3:
            self.meeting.ask(Pause())
            self.world.after(self.world.random.uniform(1, 20), self.meeting.ask, Resume())
        else:
            self.meeting.ask(self.world.random.choice((GetStatus(), GetPeers(), GetRounds(), GetEvents(), Resume())))


def play(seed: int, tail: int = 150, about: Collection[str] = (), always: bool = False, **changes: Any) -> Outcome:
    """Run one seed. A broken promise, or an exception in a core, becomes the outcome's `problem`.

    `tail` lines of trace are kept of a problem (of every run with `always`); `about` names the machines whose lines they are,
    beside what the coordinator decided; nobody: everybody's.
    """
    story = Story(seed, **changes)
    problem = ""
    try:
        story.run()
    except Violation as violation:
        problem = str(violation)
    except Exception as error:  # noqa: BLE001 - whatever a core raises is what the simulation is there to find
        where = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{type(error).__name__}: {error} ({where.filename.rsplit('/', 2)[-1]}:{where.lineno} in {where.name})"
    world, judge = story.world, story.judge
    shown = {*about, "story", "network"}
    trace = ""
    if problem or always:
        trace = world.tail(tail, lambda who, what: not about or who in shown or (who, what) in DECISIONS)
    return Outcome(seed, max(0, judge.version), judge.abandoned, world.events, world.now, problem, trace)


def report(outcome: Outcome) -> str:
    """An outcome for people."""
    line = (
        f"seed {outcome.seed}: {outcome.versions} versions, {outcome.abandoned} abandoned rounds, "
        f"{outcome.events} events in {outcome.virtual_s:.0f} virtual seconds"
    )
    if not outcome.problem:
        return f"{outcome.trace}\n\n{line}" if outcome.trace else line
    return f"{outcome.trace}\n\n{line}\nVIOLATION with --seed {outcome.seed}: {outcome.problem}"
