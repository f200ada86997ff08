"""The peer's end of the session: one stream to the coordinator, dialled again for as long as it takes.

Rule: losing the coordinator is normal. The link says `Online`, `Heard` and `Offline` to whoever owns it and otherwise looks
after itself: it waits a random time below a growing limit before it dials again (so that a thousand peers do not come back at
one moment), names are resolved anew each time, and a line says what it waits for, ever more rarely as the wait grows. Nothing
is kept across streams: what is said while there is no stream is dropped, and the engine says it again when it is back.

An error that waiting does not heal (the coordinator refuses this identity, another certificate authority, the wrong port) ends
`run` when the link was never online, because then a person is watching; later it is only reported, and tried again.

The transport is a seam (`Dial`, `Line`): `GrpcDial` is the real one. Neighbours: `engine` decides what is said, `enrol` owns
the certificates, `diagnosis` finds the words for failures.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import grpc
import grpc.aio

from shoal.peer.diagnosis import explain, probe
from shoal.peer.enrol import Credentials
from shoal.peer.events import Heard, Offline, Online
from shoal.peer.waits import said_again_s
from shoal.protocol.channels import Kind, open_channel
from shoal.protocol.errors import IdentityError, RefusedError, ShoalError, UnreachableError
from shoal.protocol.messages import Envelope
from shoal.protocol.services import SESSION, SESSION_OPEN
from shoal.protocol.tls import client_credentials
from shoal.protocol.wire import pack, unpack_from_coordinator

PAUSE_FLOOR_S = 0.5
PAUSE_CEILING_S = 15.0
STEADY_S = 5.0
"""A stream that lived this long starts the pauses from the floor again."""
REPORT_LOOK_S = 1.0
"""How often the link looks whether its wait is to be said again."""
CONNECT_S = 10.0
FLUSH_S = 2.0
"""How long a stream that is being closed may take to send what was said on it."""
OUTBOX = 4096
"""Messages that may wait for a slow stream; one more and the stream counts as broken."""
_EOF: Any = cast(Any, grpc.aio).EOF
"""Not in the type stubs of gRPC."""


class Line(Protocol):
    """One open stream of encoded envelopes."""

    async def read(self) -> bytes | None:
        """The next message; None when the other side ended the stream. Raises ShoalError when the stream breaks."""
        ...

    async def write(self, message: bytes) -> None: ...

    async def end(self) -> None:
        """Tell the other side that nothing more comes."""
        ...

    async def drop(self) -> None:
        """Free everything, at once."""
        ...


class Dial(Protocol):
    """Opens streams. A failure is a ShoalError that names the address and says what to do."""

    async def __call__(self, address: str) -> Line: ...


def pause_s(failures: int, rng: random.Random) -> float:
    """How long to wait before dialling again after so many failures in a row: exponential backoff with full jitter.

    Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """
    ceiling = min(PAUSE_CEILING_S, PAUSE_FLOOR_S * 2.0 ** min(failures, 16))
    return rng.uniform(0.0, ceiling)


class SessionLink:
    """Keeps one stream to the coordinator open. `emit` gets what happens on it, `tell` gets sentences for the volunteer."""

    def __init__(
        self,
        addresses: Sequence[str],
        dial: Dial,
        emit: Callable[[Online | Heard | Offline], None],
        tell: Callable[[str], None],
        rng: random.Random | None = None,
    ) -> None:
        if not addresses:
            raise ValueError("a session link needs an address")
        self._addresses = deque(addresses)
        self._dial = dial
        self._emit = emit
        self._tell = tell
        self._rng = rng or random.Random()
        self._outbox: deque[Envelope] = deque()
        self._to_send = asyncio.Event()
        self._hang_up = asyncio.Event()
        self._closing = asyncio.Event()
        self._online = False
        self._ever_online = False
        self._flapping = False
        self._offline_since = 0.0
        self._failures = 0
        self._attempts = 0
        self._last = ""

    @property
    def online(self) -> bool:
        """Whether there is a stream."""
        return self._online

    def say(self, envelope: Envelope) -> None:
        """Send this on the stream that is open; without one it is dropped."""
        if not self._online or self._hang_up.is_set():
            return
        if len(self._outbox) >= OUTBOX:
            self._last = f"the coordinator takes no messages ({OUTBOX} wait)"
            self._outbox.clear()
            self._hang_up.set()
            return
        self._outbox.append(envelope)
        self._to_send.set()

    def hang_up(self) -> None:
        """Close the stream after what was said on it. It is dialled again."""
        self._hang_up.set()

    def close(self) -> None:
        """Like `hang_up`, and `run` returns."""
        self._closing.set()
        self._hang_up.set()

    async def run(self) -> None:
        """Dial, and dial again, until `close`. Raises ShoalError when it never got through and waiting would not help."""
        self._offline_since = time.monotonic()
        reporter = asyncio.create_task(self._report())
        try:
            while not self._closing.is_set():
                self._hang_up.clear()
                if self._closing.is_set():
                    break
                await self._live_once()
                if self._closing.is_set():
                    break
                pause = pause_s(self._failures, self._rng)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._closing.wait()
        finally:
            reporter.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reporter

    # --- one stream -------------------------------------------------------------------------------------------------------------

    async def _live_once(self) -> None:
        address = self._addresses[0]
        self._attempts += 1
        try:
            line = await self._dial_unless_closing(address)
        except ShoalError as error:
            self._failures += 1
            self._last = str(error)
            self._addresses.rotate(-1)
            if not self._ever_online and isinstance(error, RefusedError | IdentityError):
                raise
            return
        if line is None:
            return
        began = time.monotonic()
        if self._ever_online and not self._flapping:
            self._tell(f"the coordinator at {address} is back after {began - self._offline_since:.0f} s")
        self._outbox.clear()
        self._online = self._ever_online = True
        self._emit(Online())
        try:
            reason = await self._converse(line)
        finally:
            self._online = False
            await line.drop()
        ended = time.monotonic()
        was_flapping, self._flapping = self._flapping, ended - began < STEADY_S
        if not (was_flapping and self._flapping):
            self._offline_since = ended
            self._attempts = 0
            if not self._closing.is_set():
                self._tell(f"lost the coordinator at {address}: {reason}; dialling again")
        self._failures = self._failures + 1 if self._flapping else 0
        self._last = reason
        self._emit(Offline(reason))

    async def _dial_unless_closing(self, address: str) -> Line | None:
        dialling = asyncio.ensure_future(self._dial(address))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait({dialling, closing}, return_when=asyncio.FIRST_COMPLETED)
            return dialling.result() if dialling.done() else None
        finally:
            for task in (dialling, closing):
                task.cancel()
            await asyncio.gather(dialling, closing, return_exceptions=True)

    async def _converse(self, line: Line) -> str:
        """Read and write until the stream ends; returns why it ended."""
        self._last = ""
        reading = asyncio.create_task(self._read(line))
        writing = asyncio.create_task(self._write(line))
        hanging_up = asyncio.create_task(self._hang_up.wait())
        tasks: set[asyncio.Task[Any]] = {reading, writing, hanging_up}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if hanging_up.done() and not reading.done() and not writing.done():
                with contextlib.suppress(TimeoutError, ShoalError):
                    async with asyncio.timeout(FLUSH_S):
                        await self._flush(line, writing)
                        await reading
                return self._last or "hung up"
            talking: tuple[asyncio.Task[None], ...] = (reading, writing)
            for task in talking:
                if task.done() and (error := task.exception()) is not None:
                    if isinstance(error, ShoalError):
                        return str(error)
                    raise error
            return "the coordinator ended the stream"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, line: Line) -> None:
        while (message := await line.read()) is not None:
            self._emit(Heard(unpack_from_coordinator(message)))

    async def _write(self, line: Line) -> None:
        while True:
            await self._to_send.wait()
            while self._outbox:
                await line.write(pack(self._outbox.popleft()))
            self._to_send.clear()

    async def _flush(self, line: Line, writing: asyncio.Task[None]) -> None:
        while self._outbox or self._to_send.is_set():
            if writing.done():
                return
            await asyncio.sleep(0.01)
        await line.end()

    # --- words ------------------------------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        """While there is no stream, at the times of `waits`: what is waited for, since when, and what to do."""
        since, said = self._offline_since, 0
        while True:
            await asyncio.sleep(REPORT_LOOK_S)
            if self._offline_since != since:
                since, said = self._offline_since, 0
            waited = time.monotonic() - since
            if self._online or waited < said_again_s(said):
                continue
            said += 1
            lasted = f"{waited:.0f} s" if waited < 120 else f"{waited / 60:.0f} min"
            because = f"; last: {self._last}" if self._last else ""
            self._tell(
                f"waiting for the coordinator at {', '.join(self._addresses)} for {lasted}"
                f" (have 0, need 1; {self._attempts} attempts{because}); it is tried again by itself, Ctrl-C leaves"
            )


# --- the real transport -----------------------------------------------------------------------------------------------------------


class GrpcDial:
    """Opens session streams over mutual TLS, with the credentials that are current at that moment."""

    def __init__(self, current: Callable[[], Credentials]) -> None:
        self._current = current

    async def __call__(self, address: str) -> Line:
        mine = self._current()
        mine.check()
        channel = open_channel(Kind.SESSION, address, client_credentials(mine.credential), mine.server_name)
        try:
            call = SESSION.stub(channel)()
            try:
                async with asyncio.timeout(CONNECT_S):
                    opened = dict(await call.initial_metadata() or ())
                    if not opened.keys() >= dict(SESSION_OPEN).keys():
                        await call.read()  # raises the reason; a stream that ends in peace without having been open is odd, too
                        raise UnreachableError(f"{address} ended the stream at once", "is this the coordinator's session port?")
            except TimeoutError:
                found = await asyncio.to_thread(probe, address, mine.ca, mine.server_name)
                raise found or UnreachableError(
                    f"{address} did not open a session within {CONNECT_S:.0f} s", "it may be busy; it is tried again"
                ) from None
            except grpc.aio.AioRpcError as error:
                raise await explain(error, address, mine.ca, mine.server_name, "open a session") from error
        except BaseException:
            await channel.close(None)
            raise
        return _GrpcLine(channel, call, address)


class _GrpcLine:
    """A session stream on a channel of its own."""

    def __init__(self, channel: grpc.aio.Channel, call: Any, address: str) -> None:
        self._channel = channel
        self._call = call
        self._address = address

    async def read(self) -> bytes | None:
        try:
            message = await self._call.read()
            if message is not _EOF:
                return cast(bytes, message)
            code, details = await self._call.code(), await self._call.details()
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), error.details()
        if code is grpc.StatusCode.OK:
            return None
        if code is grpc.StatusCode.PERMISSION_DENIED:
            raise RefusedError("permission-denied", details or "the coordinator refused")
        raise UnreachableError(details or f"the connection to {self._address} broke ({code.name})")

    async def write(self, message: bytes) -> None:
        try:
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise UnreachableError(f"the connection to {self._address} broke") from error

    async def end(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.done_writing()

    async def drop(self) -> None:
        self._call.cancel()
        await self._channel.close(None)
