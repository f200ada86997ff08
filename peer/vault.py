"""The vault: the shared state of one peer as memory-mapped files, written so that no kill -9 can tear it.

Rule 1: "version v" is the state after commit v, whole. The version word is raised last, and a state that is being changed has no
version that a reader could mistake for its own (an odd sequence counter says "come back later").
Rule 2: before the first byte of shared state changes, everything that is needed to finish the change lies in the vault: the commit,
the bytes of its parts, and which slot they came from. `open` finishes what it finds half done.
Rule 3: one part changes at a time, through a scratch slot: new values are computed into scratch, the progress word says so, scratch
is copied over the old values, the progress word moves on. Computing can be repeated because the old values are intact, copying
because scratch is.

The files (fp32, little endian), 16 bytes per value in all, 20 with error feedback:

    theta.f32, momentum.f32     shared state
    slot-0.f32, slot-1.f32      the pseudo-gradient: the active slot is published (or still pending), the trainer writes the other
    residual.f32                with error feedback: what the codec left out of this peer's contributions that counted
    scratch.f32                 two parts; three with error feedback
    control                     the words below
    vault.json                  run, sizes and partition; written last when a vault is made
    entries/<version>.json      the commit records of kept log entries; their parts lie in parts/<round>.bytes
    incoming.f32                a fetched state on its way in, only while an older one must survive it

The daemon owns the vault (`create`, `open`: a lock file says so) and is the only one to change shared state; a trainer attaches the
same files. Neighbours: `partstore` keeps the bytes of parts, `bulk` fills it and asks for `apply`, `trainer` publishes and loads.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import shutil
import stat
import struct
import tempfile
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from shoal.compression.codec import Codec
from shoal.compression.codec import codec as codec_named
from shoal.compression.feedback import corrected, left_out
from shoal.optim.diloco import DiLoCo
from shoal.optim.layout import Part
from shoal.optim.likeness import Likeness
from shoal.optim.outer import fingerprint
from shoal.optim.strategy import Strategy
from shoal.peer.partstore import PartStore, storage_full
from shoal.protocol.errors import LocalProtocolError, RemoteProtocolError, ShoalError
from shoal.protocol.files import write_whole
from shoal.protocol.locks import FileLock, LockHeldError
from shoal.protocol.messages import NO_VERSION, Commit, Decision, Section
from shoal.protocol.plain import from_plain, to_plain

FORMAT = 2

_MAGIC = int.from_bytes(b"shoalvlt", "little")
_CONTROL_BYTES = 4096
(
    _MAGIC_WORD,
    _FORMAT_WORD,
    _VERSION,
    _SEQUENCE,
    _APPLYING,
    _PROGRESS,
    _INSTALLING,
    _ACTIVE,
    _DROPPING,
    _SLOT_TRAINED,
    _SLOT_TRAINED_1,
    _SESSION,
) = range(12)
"""Indices of the control words (64 bit, signed; -1 where a version is none). Stores of aligned words are not torn."""


class VaultError(ShoalError):
    """A vault cannot be used as asked."""


class VaultBusyError(VaultError):
    """Another daemon has the vault open."""


@dataclass(frozen=True)
class Entry:
    """A kept log entry: the commit, and what this peer needs to repeat or serve it."""

    commit: Commit
    included: tuple[bool, ...]
    trained: int
    """Samples behind the slot afterwards."""
    slot: int
    codec: str
    block: int


def copy_whole(vault: Path, place: Path) -> None:
    """Copy a vault that nobody changes to `place`, replacing what is there; a copy is whole or not there. Raises VaultError."""
    partial = place.with_name(f"{place.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(vault, partial, ignore=shutil.ignore_patterns("lock"))
        shutil.rmtree(place, ignore_errors=True)
        os.replace(partial, place)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(partial, ignore_errors=True)
        # shutil.Error is a list of (source, target, reason), one for each file.
        why = error.args[0][0][2] if isinstance(error, shutil.Error) and error.args[0] else error
        raise VaultError(f"the local copy in {vault} cannot be copied to {place}: {why}", "make room there") from error


def shared_memory_directory() -> Path:
    """Where vaults live: `/dev/shm` on Linux, the temp dir elsewhere."""
    shm = Path("/dev/shm")
    return shm if shm.is_dir() and os.access(shm, os.W_OK) else Path(tempfile.gettempdir())


def _root_hash(version: int, layout_hash: bytes) -> hashlib._Hash:
    """The hash behind `optim.outer.fingerprint`, before the state's own bytes."""
    return hashlib.sha256(b"shoal-state-1" + struct.pack("<Q", version) + layout_hash)


class Vault:
    """Shared state, slots and log of one peer. One thread at a time may change it; readers need no lock."""

    def __init__(self, directory: Path, lock: FileLock | None, strategy: Strategy | None = None) -> None:
        """Map the files of a finished vault. Use `create`, `open` or `attach`. `strategy` (default: DiLoCo) moves shared state."""
        self.directory = directory
        self.strategy = strategy or DiLoCo()
        self._lock = lock
        about = _read_about(directory)
        self.run: str = about["run"]
        self.values: int = about["values"]
        self.layout_hash: bytes = bytes.fromhex(about["layout"])
        self.parts: tuple[Part, ...] = tuple(Part(start, stop, tuple(spans)) for start, stop, spans in about["parts"])
        self._largest = max(_size(part) for part in self.parts)
        with open(directory / "control", "r+b") as file:
            self._map = mmap.mmap(file.fileno(), _CONTROL_BYTES)
        self._words = memoryview(self._map).cast("q")
        if self._words[_MAGIC_WORD] != _MAGIC or self._words[_FORMAT_WORD] != FORMAT:
            raise VaultError(f"{directory} is not a vault of this version of shoal", "remove it; the state is fetched again")
        self.theta = _mapped(directory / "theta.f32", self.values)
        self.momentum = _mapped(directory / "momentum.f32", self.values)
        self._slots = tuple(_mapped(directory / f"slot-{i}.f32", self.values) for i in range(2))
        self.feedback: Codec | None = codec_named(*about["feedback"]) if about.get("feedback") else None
        """The codec of contributions, if what it leaves out is added to later ones."""
        self.residual = _mapped(directory / "residual.f32", self.values) if self.feedback else torch.empty(0)
        self._scratch = _mapped(directory / "scratch.f32", (3 if self.feedback else 2) * self._largest)
        self._incoming: Incoming | None = None
        self._root: tuple[int, bytes] | None = None
        self._entries: dict[int, Entry] = {}
        self._store = PartStore(directory / "parts") if lock is not None else None
        self.observe: Callable[[str], None] = _unobserved
        """Called between any two steps of a change, with the step's name; tests kill the process in it."""

    # --- making and opening ------------------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        directory: Path,
        run: str,
        values: int,
        layout_hash: bytes,
        parts: Sequence[Part],
        *,
        log_bytes: int = 0,
        strategy: Strategy | None = None,
        feedback: Codec | None = None,
    ) -> Vault:
        """Make an empty vault (no version yet) and own it. What stood in its place is removed. `feedback`: the codec of
        contributions, in a run with error feedback.

        All memory of the files is taken now, so that a full file system is this error and not a SIGBUS later; for the log there
        must be `log_bytes` more at this moment. Raises StorageFullError and VaultError.
        """
        if values <= 0 or not parts:
            raise VaultError("a vault needs at least one value and one part")
        position = 0
        for part in parts:
            if part.start != position or part.stop <= part.start or sum(part.spans) != part.stop - part.start:
                raise VaultError(f"part {part.start}..{part.stop} does not continue the partition at {position}")
            position = part.stop
        if position != values:
            raise VaultError(f"the parts cover {position} of {values} values")
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = _own(directory)
        try:
            for old in directory.iterdir():
                if old.name != "lock":
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
            largest = max(part.stop - part.start for part in parts)
            sizes = _file_sizes(values, largest, feedback is not None)
            need = sum(sizes.values()) + log_bytes
            status = os.statvfs(directory)
            if status.f_bavail * status.f_frsize < need:
                raise storage_full(directory, need, f"{values:,} parameters and the log")
            try:
                for name, size in sizes.items():
                    _allocate(directory / name, size)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise storage_full(directory, need, f"{values:,} parameters") from error
                raise
            (directory / "entries").mkdir()
            words = [0] * 12
            words[_MAGIC_WORD], words[_FORMAT_WORD] = _MAGIC, FORMAT
            for word in (_VERSION, _APPLYING, _INSTALLING):
                words[word] = NO_VERSION
            with open(directory / "control", "r+b") as file:
                file.write(struct.pack("<12q", *words))
            about = {
                "format": FORMAT,
                "run": run,
                "values": values,
                "layout": layout_hash.hex(),
                "parts": [[part.start, part.stop, list(part.spans)] for part in parts],
                "feedback": [feedback.name, feedback.block] if feedback else None,
            }
            write_whole(directory / "vault.json", json.dumps(about).encode(), durable=False)
            return cls(directory, lock, strategy)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, directory: Path, run: str, layout_hash: bytes | None = None, strategy: Strategy | None = None) -> Vault:
        """Own the vault that an earlier daemon left here, and finish what it was doing. Raises VaultError when there is none, when
        it is damaged or belongs to another run or model, VaultBusyError when another daemon has it open, and OSError when it cannot
        be read now, which says nothing about what it holds."""
        if not (directory / "vault.json").exists():
            raise VaultError(f"there is no vault in {directory}")
        lock = _own(directory)
        try:
            vault = cls(directory, lock, strategy)
            if vault.run != run or (layout_hash is not None and vault.layout_hash != layout_hash):
                raise VaultError(
                    f"the vault in {directory} belongs to another run or model", "remove it, or choose another directory"
                )
            vault._recover()
        except BaseException as error:
            lock.release()
            passing = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
            if passing or isinstance(error, VaultError | MemoryError) or not isinstance(error, Exception):
                raise
            # Whatever else the bytes of a damaged file lead to.
            raise VaultError(f"the vault in {directory} is damaged: {error}", "remove it; the state is fetched again") from error
        return vault

    @classmethod
    def attach(cls, directory: Path, strategy: Strategy | None = None) -> Vault:
        """Map a vault that a daemon owns, as its trainer does: to read shared state, to publish, and to write version 0."""
        if not (directory / "vault.json").exists():
            raise VaultError(f"there is no vault in {directory}")
        return cls(directory, None, strategy)

    def close(self, remove: bool = False) -> None:
        """Let go of the files; `remove` deletes them (mappings of other processes stay valid)."""
        if self._store is not None:
            self._store.close()
        self._incoming = None
        self._words.release()
        self._map.close()
        empty = torch.empty(0)
        self.theta = self.momentum = self.residual = self._scratch = empty
        self._slots = (empty, empty)
        if remove:
            shutil.rmtree(self.directory, ignore_errors=True)
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def store(self) -> PartStore:
        """Where the bytes of parts are kept; the owner's only."""
        if self._store is None:
            raise LocalProtocolError("only the daemon that owns a vault keeps parts")
        return self._store

    # --- reading -----------------------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Version of the shared state, or NO_VERSION."""
        return self._words[_VERSION]

    @property
    def changing(self) -> bool:
        """Whether a change of shared state is under way (or was cut short)."""
        return bool(self._words[_SEQUENCE] & 1)

    @property
    def pending(self) -> torch.Tensor:
        """The active slot: this peer's progress that is in no committed entry. (values,)"""
        return self._slots[self._words[_ACTIVE]]

    @property
    def trained(self) -> int:
        """Samples behind the active slot."""
        return self._words[_SLOT_TRAINED + self._words[_ACTIVE]]

    def contribution(self, part: Part) -> torch.Tensor:
        """What this peer has to send for a part, before it is encoded: its pending work, and what the codec left out earlier."""
        pending = self.pending[part.start : part.stop]
        return corrected(pending, self.residual[part.start : part.stop]) if self.feedback else pending

    @property
    def session(self) -> int:
        """The session that a restarted daemon may resume, or NO_SESSION."""
        return self._words[_SESSION]

    def keep_session(self, session: int) -> None:
        """Remember a session for a restarted daemon."""
        self._words[_SESSION] = session

    def read_theta(self, version: int, out: torch.Tensor | None = None) -> torch.Tensor | None:
        """A consistent copy of the outer parameters at `version`, or None when that is not what the vault holds (any more)."""
        return self._consistent(version, lambda: self.theta.clone() if out is None else out.copy_(self.theta))

    def read_local(self, version: int, out: torch.Tensor | None = None) -> torch.Tensor | None:
        """Where a member goes on from at `version`, or None when the vault is not at that version (any more)."""
        local = torch.empty_like(self.theta) if out is None else out

        def load() -> torch.Tensor:
            self.strategy.load(self.theta, self.pending, local)
            return local

        return self._consistent(version, load)

    def _consistent(self, version: int, read: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        sequence = self._words[_SEQUENCE]
        if sequence & 1 or self.version != version or version == NO_VERSION:
            return None
        copy = read()
        return copy if self._words[_SEQUENCE] == sequence else None

    def root(self) -> bytes:
        """Fingerprint of the shared state; remembered until the version changes. Raises VaultError without a state."""
        version = self.version
        if version == NO_VERSION or self.changing:
            raise VaultError("there is no whole shared state to hash")
        if self._root is None or self._root[0] != version:
            self._root = (version, fingerprint(version, self.layout_hash, self.theta, self.momentum))
        return self._root[1]

    # --- the trainer's side ------------------------------------------------------------------------------------------------------

    def begin_publish(self) -> torch.Tensor:
        """The inactive slot, to write base minus local into. (values,) Nothing changes for anybody until `publish`."""
        return self._slots[1 - self._words[_ACTIVE]]

    def publish(self, trained: int) -> None:
        """Make what was written into the inactive slot the published pseudo-gradient, with the samples behind it."""
        slot = 1 - self._words[_ACTIVE]
        self._words[_SLOT_TRAINED + slot] = trained
        self._words[_ACTIVE] = slot

    def begin_origin(self) -> torch.Tensor:
        """The outer parameters, to write version 0 into. Only before version 1."""
        if self.version > 0:
            raise LocalProtocolError(f"version 0 cannot replace version {self.version}")
        self._begin_change()
        self._words[_VERSION] = NO_VERSION
        return self.theta

    def finish_origin(self) -> None:
        """What was written is version 0; momentum starts at 0."""
        self.momentum.zero_()
        self._finish_change(0)

    # --- changing shared state ---------------------------------------------------------------------------------------------------

    def drop_pending(self) -> None:
        """Pending work no longer counts: the active slot becomes 0."""
        self._words[_DROPPING] = 1
        self.observe("dropping")
        slot = self._words[_ACTIVE]
        self._words[_SLOT_TRAINED + slot] = 0
        self._slots[slot].zero_()
        self.observe("dropped")
        self._words[_DROPPING] = 0

    def apply(self, commit: Commit, included: Sequence[bool], codec: Codec, trained: int = 0) -> Likeness:
        """Turn version `commit.base` into `commit.version`: per part, the outer step with the part's decoded bytes from the store;
        where this peer's work is included, its pending slice becomes 0, and what the codec left out of it the residual.

        `codec` is the return codec; `trained` counts the samples behind what stays pending. An entry that the vault is past already
        changes nothing. After a kill at any moment `open` ends with the same bytes. Returns how this peer's work compares with the
        update in the parts that include it. Raises LocalProtocolError when parts miss or do not fit.
        """
        if commit.version <= self.version and not self.changing:
            return Likeness()
        if commit.base != self.version:
            raise LocalProtocolError(f"entry {commit.version} continues version {commit.base}, the vault is at {self.version}")
        if len(included) != len(commit.parts):
            raise LocalProtocolError(f"{len(included)} inclusions for {len(commit.parts)} parts")
        entry = Entry(commit, tuple(included), trained, self._words[_ACTIVE], codec.name, codec.block)
        self._payloads(entry, codec)
        write_whole(self._entry_path(commit.version), json.dumps(to_plain(entry)).encode(), durable=False)
        self.observe("entry written")
        self._words[_PROGRESS] = 0
        self._begin_change()
        self._words[_APPLYING] = commit.version
        self.observe("applying")
        return self._continue(entry, codec)

    def _continue(self, entry: Entry, codec: Codec) -> Likeness:
        """Do the parts that the progress word says are not done, and raise the version."""
        commit = entry.commit
        likeness = Likeness()
        payloads = self._payloads(entry, codec)
        delta = torch.empty(self._largest)
        buffer = torch.empty(self._largest)
        progress = self._words[_PROGRESS]
        for index in range(progress // 2, len(self.parts)):
            part = self.parts[index]
            theta, momentum = self._scratch[: _size(part)], self._scratch[self._largest : self._largest + _size(part)]
            if self._words[_PROGRESS] == 2 * index:
                codec.decode(payloads(index), part.spans, delta[: _size(part)])
                theta.copy_(self.theta[part.start : part.stop])
                momentum.copy_(self.momentum[part.start : part.stop])
                update, lr, mu = delta[: _size(part)], commit.outer_lr, commit.outer_momentum
                self.strategy.step(theta, momentum, update, lr, mu, buffer[: _size(part)])
                if entry.included[index]:
                    likeness.add(self._slots[entry.slot][part.start : part.stop], update)
                if self.feedback and entry.included[index]:
                    pending, residual = self._slots[entry.slot][part.start : part.stop], self.residual[part.start : part.stop]
                    left_out(self.feedback, part.spans, pending, residual, self._residual_scratch(part))
                self.observe("computed")
                self._words[_PROGRESS] = 2 * index + 1
            self.observe("copying")
            self.theta[part.start : part.stop] = theta
            self.observe("half copied")
            self.momentum[part.start : part.stop] = momentum
            if entry.included[index]:
                if self.feedback:
                    self.residual[part.start : part.stop] = self._residual_scratch(part)
                self._slots[entry.slot][part.start : part.stop] = 0
            self.observe("copied")
            self._words[_PROGRESS] = 2 * index + 2
            self.observe("part done")
        self._entries[commit.version] = entry
        self._words[_SLOT_TRAINED + entry.slot] = entry.trained
        self._finish_change(commit.version)
        return likeness

    def _residual_scratch(self, part: Part) -> torch.Tensor:
        return self._scratch[2 * self._largest :][: _size(part)]

    def _payloads(self, entry: Entry, codec: Codec) -> Callable[[int], bytes]:
        """The entry's bytes by part. Raises LocalProtocolError unless every part is stored and has its right size."""
        decisions: dict[int, Decision] = {}
        for decision in entry.commit.parts:
            if decision.section is not Section.PARAMETERS or decision.part in decisions:
                raise LocalProtocolError(
                    f"entry {entry.commit.version} has an unknown part: {decision.section.value} {decision.part}"
                )
            decisions[decision.part] = decision
        if sorted(decisions) != list(range(len(self.parts))):
            raise LocalProtocolError(f"entry {entry.commit.version} has {len(decisions)} parts, the vault has {len(self.parts)}")
        places = []
        for index, part in enumerate(self.parts):
            stored = self.store.find(decisions[index].digest, entry.commit.round)
            if stored is None or stored.length != codec.encoded_size(part.spans):
                raise LocalProtocolError(f"the bytes of part {index} of entry {entry.commit.version} are not in the vault")
            places.append(stored)
        return lambda index: self.store.read(places[index])

    def _begin_change(self) -> None:
        if not self._words[_SEQUENCE] & 1:
            self._words[_SEQUENCE] += 1

    def _finish_change(self, version: int) -> None:
        self.observe("finishing")
        self._words[_VERSION] = version
        self.observe("version raised")
        self._words[_APPLYING] = NO_VERSION
        self._words[_INSTALLING] = NO_VERSION
        self.observe("mark cleared")
        if self._words[_SEQUENCE] & 1:
            self._words[_SEQUENCE] += 1

    def _recover(self) -> None:
        """Finish what a killed process left half done."""
        self._load_entries()
        if self._words[_DROPPING]:
            self.drop_pending()
        if (version := self._words[_INSTALLING]) != NO_VERSION:
            if self.version != version:
                self._copy_incoming()
            self._finish_change(version)
        if (version := self._words[_APPLYING]) != NO_VERSION:
            if self.version != version:
                entry = self._entries.get(version)
                if entry is None:
                    raise VaultError(f"the vault in {self.directory} lost entry {version}", "remove it; the state is fetched again")
                self._continue(entry, codec_named(entry.codec, entry.block))
            else:
                self._finish_change(version)
        if self.changing:
            self._finish_change(self.version)
        self._incoming_path.unlink(missing_ok=True)

    # --- a state from elsewhere --------------------------------------------------------------------------------------------------

    def incoming(self, version: int, root: bytes) -> Incoming:
        """Where to write a fetched state, from its `received` on; one that was interrupted goes on if it is the same state.

        A vault without a version takes the bytes in place; one that has a state keeps it until the new one is whole and verified.
        """
        if self._incoming is None or (self._incoming.version, self._incoming.root) != (version, root):
            if self.version == NO_VERSION:
                self._begin_change()
                halves = (self.theta, self.momentum)
            else:
                try:
                    _allocate(self._incoming_path, 8 * self.values)
                except OSError as error:
                    self._incoming_path.unlink(missing_ok=True)
                    if error.errno == errno.ENOSPC:
                        raise storage_full(self.directory, 8 * self.values, "the state that is fetched") from error
                    raise
                whole = _mapped(self._incoming_path, 2 * self.values)
                halves = (whole[: self.values], whole[self.values :])
            self._incoming = Incoming(version, root, halves, _root_hash(version, self.layout_hash))
        return self._incoming

    def interrupted(self) -> Incoming | None:
        """The fetched state that is not whole yet, if there is one."""
        return self._incoming

    def install(self, incoming: Incoming) -> None:
        """Check a whole fetched state against its root and make it the shared state; residuals belonged to the old one. Raises
        RemoteProtocolError on a mismatch; the bytes are then forgotten."""
        self._incoming = None
        if not incoming.whole or incoming.digest() != incoming.root:
            self._incoming_path.unlink(missing_ok=True)
            raise RemoteProtocolError(f"the fetched state at version {incoming.version} does not have the root that was announced")
        self.observe("verified")
        if self.version != NO_VERSION:
            self._begin_change()
            self._words[_INSTALLING] = incoming.version
            self.observe("installing")
            self._copy_incoming()
        self.residual.zero_()
        self._root = None
        self._finish_change(incoming.version)
        self._root = (incoming.version, incoming.root)
        self._incoming_path.unlink(missing_ok=True)

    def _copy_incoming(self) -> None:
        whole = _mapped(self._incoming_path, 2 * self.values)
        self.theta.copy_(whole[: self.values])
        self.observe("half installed")
        self.momentum.copy_(whole[self.values :])
        self.residual.zero_()
        self.observe("installed")

    @property
    def _incoming_path(self) -> Path:
        return self.directory / "incoming.f32"

    # --- the log -----------------------------------------------------------------------------------------------------------------

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Kept log entries, oldest first."""
        return tuple(self._entries[version] for version in sorted(self._entries))

    def keep_entries(self, count: int, rounds: Sequence[int] = ()) -> None:
        """Forget all but the newest `count` entries, and the parts of rounds that belong neither to them nor to `rounds`."""
        kept = sorted(self._entries)[-count:] if count else []
        for version in set(self._entries) - set(kept):
            del self._entries[version]
            self._entry_path(version).unlink(missing_ok=True)
        wanted = {self._entries[version].commit.round for version in kept} | set(rounds)
        for round_id in self.store.rounds() - wanted:
            self.store.drop(round_id)

    def drop_round(self, round_id: int) -> None:
        """Forget the parts of a round unless a kept entry needs them."""
        if all(entry.commit.round != round_id for entry in self._entries.values()):
            self.store.drop(round_id)

    def _entry_path(self, version: int) -> Path:
        return self.directory / "entries" / f"{version}.json"

    def _load_entries(self) -> None:
        for unfinished in (self.directory / "entries").glob(".*"):
            unfinished.unlink()
        for path in (self.directory / "entries").glob("*.json"):
            try:
                entry = from_plain(Entry, json.loads(path.read_bytes()))
            except (ValueError, RemoteProtocolError):
                path.unlink()  # it only served others; the state does not depend on it, unless it was being applied
                continue
            if entry.commit.version <= self.version or entry.commit.version == self._words[_APPLYING]:
                self._entries[entry.commit.version] = entry
            else:
                path.unlink()


class Incoming:
    """A fetched state on its way into a vault: bytes arrive in order and are hashed as they come."""

    def __init__(self, version: int, root: bytes, halves: tuple[torch.Tensor, torch.Tensor], digest: hashlib._Hash) -> None:
        self.version = version
        self.root = root
        self.received = 0
        """Bytes of theta, then momentum, that are here."""
        self._halves = tuple(_bytes_of(half) for half in halves)
        self._digest = digest

    @property
    def total(self) -> int:
        """Bytes of the whole state."""
        return sum(len(half) for half in self._halves)

    @property
    def whole(self) -> bool:
        return self.received == self.total

    def write(self, chunk: bytes | memoryview) -> None:
        """Take the bytes that follow. Raises RemoteProtocolError when there are more than the state has."""
        if self.received + len(chunk) > self.total:
            raise RemoteProtocolError(f"a state of {self.total} bytes was announced; more came")
        view = memoryview(chunk)
        first = len(self._halves[0])
        if self.received < first:
            head = view[: first - self.received]
            self._halves[0][self.received : self.received + len(head)] = head
            rest, position = view[len(head) :], 0
        else:
            rest, position = view, self.received - first
        if len(rest):
            self._halves[1][position : position + len(rest)] = rest
        self._digest.update(chunk)
        self.received += len(chunk)

    def digest(self) -> bytes:
        """SHA-256 root of what arrived."""
        return self._digest.digest()


def log_bytes(parts: Sequence[Part], codec: Codec, entries: int) -> int:
    """What the parts of this many log entries take; `codec` is the return codec."""
    return entries * sum(codec.encoded_size(part.spans) for part in parts)


def vault_bytes(parts: Sequence[Part], feedback: bool) -> int:
    """What the vault of a model with this partition takes, beside its log."""
    return sum(_file_sizes(parts[-1].stop, max(map(_size, parts)), feedback).values())


def _file_sizes(values: int, largest: int, feedback: bool) -> dict[str, int]:
    sizes = dict.fromkeys(("theta.f32", "momentum.f32", "slot-0.f32", "slot-1.f32"), 4 * values)
    sizes |= {"scratch.f32": (12 if feedback else 8) * largest, "control": _CONTROL_BYTES}
    return sizes | ({"residual.f32": 4 * values} if feedback else {})


def _size(part: Part) -> int:
    return part.stop - part.start


def _unobserved(step: str) -> None:
    pass


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(typing.cast(typing.Any, tensor.numpy())).cast("B")


def _mapped(path: Path, values: int) -> torch.Tensor:
    """The file as a tensor. Raises VaultError when it is too short, which torch would mend with zeros."""
    if path.stat().st_size < 4 * values:
        raise VaultError(f"{path} is cut off", "remove its directory; the state is fetched again")
    return torch.from_file(str(path), shared=True, size=values, dtype=torch.float32)


def _allocate(path: Path, size: int) -> None:
    """A file of zeros that really has its memory."""
    with open(path, "wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
            return
        zeros = bytes(1 << 20)
        for position in range(0, size, len(zeros)):
            file.write(zeros[: size - position])


def _read_about(directory: Path) -> dict[str, typing.Any]:
    about = json.loads((directory / "vault.json").read_bytes())
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise VaultError(f"{directory} is not a vault of this version of shoal", "remove it; the state is fetched again")
    return about


def _own(directory: Path) -> FileLock:
    """The vault's lock. Anybody may make names in a shared-memory directory: one that somebody else made is not used."""
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or (hasattr(os, "getuid") and found.st_uid != os.getuid()):
        raise VaultError(f"{directory} is not a directory of this user's", "remove it, and find out who made it")
    try:
        return FileLock.take(directory / "lock")
    except LockHeldError as error:
        raise VaultBusyError(
            f"another daemon{f' (process {error.holder})' if error.holder else ''} has the vault in {directory} open",
            "stop it first, or choose another directory",
        ) from None
