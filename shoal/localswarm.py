"""A whole swarm on this machine: a coordinator and peers as real processes that talk over real mTLS on loopback.

Rule: everything that it makes lies in one directory, and everything that it starts is in one list, so that `close` leaves
nothing: no process, no port, no shared memory, whatever happened before. Neighbours: `processes` are its members, `demo` its
story; the tests use the same class, so that what the demo relies on is what they break.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from shoal.failures import MachineError
from shoal.processes import Child, end
from shoal.protocol.errors import ShoalError, UnreachableError

if TYPE_CHECKING:
    from shoal.protocol.admin import AdminCommand, AdminReply
    from shoal.protocol.spec import RunSpec

LOOPBACK = "127.0.0.1"
COORDINATOR_START_S = 30.0
POLL_S = 0.1


class LocalSwarm:
    """One run's coordinator and peers, below `directory`. A context manager: leaving it ends all of them.

    The run's name must be one that no other run on this machine has: shared memory is found by it.
    """

    def __init__(
        self, directory: Path, spec: RunSpec, *, peer_words: Sequence[str] = (), environment: dict[str, str] | None = None
    ) -> None:
        self.directory = directory
        self.run_directory = directory / "coordinator"
        self.spec = spec
        self.peer_words = tuple(peer_words)
        self.coordinator_words: tuple[str, ...] = ()
        """What the coordinator is started with beside what it needs."""
        self.environment = dict(environment or {})
        self.coordinator: Child | None = None
        self.peers: dict[str, Child] = {}
        self.invite = ""
        self.address = ""
        """Where the coordinator listens for members, once the run is made."""
        self.advice = f"logs are in {directory}"
        """What to do when something fails here."""
        self._ended: list[Child] = []

    def __enter__(self) -> LocalSwarm:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def create(self) -> None:
        """Make the run's keys and its invite."""
        from shoal.coordinator.setup import init

        anywhere = f"{LOOPBACK}:0"
        invite = init(self.run_directory, self.spec, listen=anywhere, enrol_listen=anywhere, advertise=LOOPBACK)
        self.invite, self.address = invite.line(), invite.session_addresses[0]

    def start_coordinator(self) -> Child:
        """Start it, again if need be, and wait until it answers."""
        if self.coordinator is not None:
            self._ended.append(self.coordinator)
        words = ("coordinator", "serve", str(self.run_directory), "--leashed", *self.coordinator_words)
        self.coordinator = Child("coordinator", words, self.directory / "coordinator.log", self.environment)
        self.wait_for(self._answers, COORDINATOR_START_S, "the coordinator to answer")
        return self.coordinator

    def add_peer(self, name: str, *words: str, invite: str | None = None, environment: Mapping[str, str] | None = None) -> Child:
        """Start a peer. A name that was used before comes back with its identity and its local copy."""
        if name in self.peers:
            self._ended.append(self.peers[name])
        state = self.state_of(name)
        state.mkdir(parents=True, exist_ok=True)
        line = self.directory / f"{name}.invite"
        line.write_text(invite or self.invite, encoding="utf-8")
        command = (
            *("peer", "join", str(line), "--name", name, "--state", str(state)),
            *("--listen", f"{LOOPBACK}:0", "--nice", "0", "--leashed"),
            *self.peer_words,
            *words,
        )
        surroundings = {**self.environment, **(environment or {})}
        self.peers[name] = Child(name, command, self.directory / f"{name}.log", surroundings)
        return self.peers[name]

    def state_of(self, name: str) -> Path:
        """The state directory of a peer."""
        return self.directory / name

    def ask(self, command: AdminCommand) -> AdminReply:
        """What `shoal admin` does."""
        from shoal.adminclient import call

        return call(self.run_directory, command)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Look again and again until `condition` holds; raises MachineError, with the last words of who died, when it does
        not."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                raise MachineError(f"waited {timeout_s:g} s for {what}", self.advice)
            time.sleep(POLL_S)

    def check(self) -> None:
        """Raise when the coordinator died: nothing that one waits for would ever happen."""
        coordinator = self.coordinator
        if coordinator is not None and coordinator.exit_code is not None:
            raise MachineError(f"the coordinator ended with code {coordinator.exit_code}: {coordinator.last_words(3)}", self.advice)

    def close(self) -> None:
        """End everything and remove the local copies that killed peers left in shared memory."""
        children = [*self._ended, *self.peers.values()]
        if self.coordinator is not None:
            children.append(self.coordinator)
        end(children)
        self.remove_local_copies()

    def remove_local_copies(self) -> None:
        """A peer that was killed could not remove its vault; the run's name tells which are ours."""
        for place in {Path("/dev/shm"), Path(tempfile.gettempdir())}:
            for vault in place.glob(f"shoal-*-{self.spec.run.name}-*"):
                shutil.rmtree(vault, ignore_errors=True)

    def _answers(self) -> bool:
        from shoal.protocol.admin import GetStatus

        try:
            self.ask(GetStatus())
        except UnreachableError:
            return False
        except ShoalError as error:
            raise MachineError(f"the coordinator refuses its own operator: {error}") from error
        return True
