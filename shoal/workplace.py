"""A directory to work in that is gone afterwards, also when the work is cut short."""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


@contextmanager
def workplace(keep: Path | None = None) -> Iterator[Path]:
    """A new temporary directory, removed at the end; or `keep`, which is made and stays."""
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep.absolute()
        return
    directory = Path(tempfile.mkdtemp(prefix="shoal-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """SIGTERM and a closed terminal end the work as Ctrl-C does: everything is tidied up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {name: signal.signal(getattr(signal, name), _interrupt) for name in names}
    before_int = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before_int)
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
