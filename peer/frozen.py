"""Handing the whole shared state to joiners while the swarm goes on: one frozen copy per version, for all who fetch it.

Rule: a copy exists only while somebody reads it (8 bytes per value), there are at most `limit` of them, and each is whole: it is
made between two entries, together with its fingerprint. Neighbours: `bulk` serves from it; `vault` is what gets copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import torch

from shoal.peer.vault import Vault
from shoal.peer.workers import Workers
from shoal.protocol.errors import RefusedError
from shoal.protocol.messages import NO_VERSION

FROZEN_LIMIT = 2


class Frozen:
    """A shared state that does not change any more."""

    def __init__(self, vault: Vault) -> None:
        """In the workers' state thread: copy the vault's state. Raises VaultError when there is none."""
        self.root = vault.root()
        self.version = vault.version
        self.layout_hash = vault.layout_hash
        self.size = 8 * vault.values
        self._content = torch.cat((vault.theta, vault.momentum))
        self._bytes = memoryview(self._content.numpy()).cast("B")  # type: ignore[arg-type]
        self.readers = 0

    def chunk(self, offset: int, size: int) -> bytes:
        """Bytes [offset, offset + size) of theta, then momentum."""
        return bytes(self._bytes[offset : offset + size])


class FrozenStates:
    """The copies that are being read now."""

    def __init__(self, vault: Vault, workers: Workers, limit: int = FROZEN_LIMIT) -> None:
        self._vault = vault
        self._workers = workers
        self._limit = limit
        self._copies: dict[int, Frozen] = {}
        self._lock = asyncio.Lock()

    @property
    def copies(self) -> int:
        """How many there are."""
        return len(self._copies)

    @asynccontextmanager
    async def hold(self, version: int, root: bytes) -> AsyncIterator[Frozen]:
        """The state at `version` or newer; with a root, exactly the one that has it. Raises RefusedError."""
        async with self._lock:
            frozen = await self._find(version, root)
            frozen.readers += 1
        try:
            yield frozen
        finally:
            frozen.readers -= 1
            if frozen.readers == 0 and self._copies.get(frozen.version) is frozen:
                self._copies.pop(frozen.version, None)

    async def _find(self, version: int, root: bytes) -> Frozen:
        for frozen in self._copies.values():
            if frozen.root == root or (not root and frozen.version >= version):
                return frozen
        current = self._vault.version
        if current < version or current == NO_VERSION:
            raise RefusedError("not-here", f"version {version} is not here, the newest is {current}")
        if len(self._copies) >= self._limit:
            raise RefusedError("busy", f"{len(self._copies)} states are being fetched from here already", "ask another donor")
        frozen = await self._workers.state(Frozen, self._vault)
        if root and frozen.root != root:
            raise RefusedError("not-here", "the state with that fingerprint is not here any more")
        self._copies[frozen.version] = frozen
        return frozen
