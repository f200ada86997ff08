"""What a run takes of a volunteer's memory, and that a vault takes just that."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.compression.codec import codec
from shoal.optim.layout import Part
from shoal.peer.budget import BudgetError, Needs, needs, parse_size, unbudgeted_bytes
from shoal.peer.vault import Vault

INT8, RAW = codec("int8", 64), codec("raw")
PARTS = tuple(Part(start, start + 1000, (700, 300)) for start in range(0, 9000, 1000))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("800M", 800_000_000),
        ("2G", 2_000_000_000),
        ("1.5GiB", 3 << 29),
        ("64MB", 64_000_000),
        ("12345", 12_345),
        ("2 g", 2_000_000_000),
    ],
)
def test_a_size_is_read_as_it_is_written(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "2 bananas", "-3G", "0", "1e9", "G", "2GG"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="this is"):
        parse_size(text)


@pytest.mark.parametrize("feedback", [False, True])
def test_a_vault_takes_what_was_said(tmp_path: Path, feedback: bool) -> None:
    said = needs(PARTS, INT8, INT8, 3, feedback)
    vault = Vault.create(tmp_path / "v", "run", 9000, b"l" * 32, PARTS, feedback=INT8 if feedback else None)
    taken = sum(
        path.stat().st_size for path in vault.directory.iterdir() if path.is_file() and path.name not in ("lock", "vault.json")
    )
    vault.close(remove=True)
    assert said.vault == taken
    assert said.log == 3 * sum(INT8.encoded_size(part.spans) for part in PARTS)


def test_what_waits_and_what_is_added_up_is_counted_by_the_larger_codec() -> None:
    narrow, wide = needs(PARTS, INT8, INT8, 3, False), needs(PARTS, INT8, RAW, 3, False)
    assert narrow.waiting == 9 * INT8.encoded_size((700, 300))
    assert wide.waiting == 9 * RAW.encoded_size((700, 300))
    assert narrow.sums == 9 * 4000 + 9 * INT8.encoded_size((700, 300))
    assert narrow.joiner == 8 * 9000
    assert narrow.total == narrow.fixed + narrow.waiting


def test_without_a_budget_contributions_may_take_one_encoded_copy_of_the_model_but_not_less_than_is_of_use() -> None:
    message = INT8.encoded_size((700, 300))
    assert unbudgeted_bytes(PARTS, INT8) == 16 * message
    assert unbudgeted_bytes([*PARTS, *PARTS], INT8) == 18 * message


def test_a_run_that_does_not_fit_is_refused_with_have_and_need_and_one_that_does_is_not() -> None:
    run = Needs(1_600_000_000, 400_000_000, 100_000_000, 800_000_000, 32_000_000)
    run.check(2_932_000_000)
    with pytest.raises(BudgetError) as caught:
        run.check(2_931_999_999)
    error = caught.value
    listed = "local copy 1600, log 400, sums 100, a joiner 800, waiting 32"
    assert error.message == f"this run does not fit into --memory: have 2931, need 2932 MB ({listed})"
    assert error.fix == "give it --memory 2932M if the machine has that to spare, or take part with another one"
    run.check(parse_size("2932M"))  # what the sentence says does
