"""A round's contributions on disk: what went in comes out, and nothing stays."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shoal.peer.spill import SpillFile


def test_contributions_come_back_as_they_were_whoever_writes_first(tmp_path: Path) -> None:
    file = SpillFile(tmp_path)
    contents = [os.urandom(1000 + 17 * i) for i in range(40)]
    places = [file.reserve(len(content)) for content in contents]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: places[i].write(memoryview(contents[i])), reversed(range(40))))
    assert [bytes(place.read()) for place in places] == contents
    assert [len(place) for place in places] == [len(content) for content in contents]


def test_the_file_has_no_name_and_is_closed_with_its_last_reader(tmp_path: Path) -> None:
    file = SpillFile(tmp_path)
    assert list(tmp_path.iterdir()) == []
    place = file.reserve(3)
    place.write(memoryview(b"abc"))
    descriptor = place.file.descriptor
    del file
    gc.collect()
    assert bytes(place.read()) == b"abc"
    del place
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_place_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SpillFile(tmp_path / "nowhere")
