"""What a volunteer reads while the peer works."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from shoal.panel import Lines, Panel, amount, byte_count, duration, facts, waiting


@dataclass(frozen=True)
class Report:
    """Progress as the daemon reports it."""

    phase: str = "training"
    round: int = 3
    version: int = 2
    members: int = 4
    steps: int = 12
    loss: float = 2.5
    tokens_per_s: float = 5234.0
    bits_per_byte: float = 0.0
    unit: str = "bits per byte"
    waiting_for: str = ""
    waiting_s: float = 0.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_log_gets_one_line_per_round_however_often_the_peer_reports() -> None:
    written: list[str] = []
    clock = Clock()
    lines = Lines(written.append, clock)
    for version in (2, 3, 4):
        for steps in range(10):
            clock.now += 0.3
            lines.watch(Report(version=version, steps=steps))
    assert len(written) == 3
    assert "version 4" in written[-1]


def test_rounds_shorter_than_a_second_do_not_flood_the_log() -> None:
    written: list[str] = []
    clock = Clock()
    lines = Lines(written.append, clock)
    for version in range(1, 101):
        clock.now += 0.1
        lines.watch(Report(version=version))
    assert len(written) == 10


def test_a_wait_is_said_after_five_seconds_and_ever_more_rarely() -> None:
    written: list[str] = []
    clock = Clock()
    lines = Lines(written.append, clock)
    clock.now = 99.0
    lines.watch(Report())
    written.clear()
    for second in range(4000):
        clock.now = 100.0 + second
        lines.watch(Report(waiting_for="1 more peer (have 1, need 2)", waiting_s=second))
    assert [line.split(" ", 1)[1] for line in written] == [
        "still waiting after 5 s for 1 more peer (have 1, need 2)",
        "still waiting after 30 s for 1 more peer (have 1, need 2)",
        "still waiting after 5 min 00 s for 1 more peer (have 1, need 2)",
        "still waiting after 1 h 05 min for 1 more peer (have 1, need 2)",
    ]
    lines.watch(Report(waiting_for="the coordinator", waiting_s=1))
    clock.now += 5
    lines.watch(Report(waiting_for="the coordinator", waiting_s=6))
    assert written[-1].endswith("still waiting after 6 s for the coordinator")


def test_before_the_first_version_each_change_of_phase_is_a_line() -> None:
    written: list[str] = []
    clock = Clock()
    lines = Lines(written.append, clock)
    for phase in ("connecting", "connecting", "starting the trainer", "fetching state"):
        lines.watch(Report(phase=phase, version=-1, round=0, loss=0.0, tokens_per_s=0.0, members=0, steps=0))
    assert [line.split(" ", 1)[1] for line in written] == ["phase connecting", "phase starting the trainer", "phase fetching state"]


def test_what_is_not_known_yet_is_left_out() -> None:
    assert facts(Report("joining", 0, -1, 0, 0, 0.0, 0.0)) == [("phase", "joining")]
    assert dict(facts(Report())) == {
        "phase": "training",
        "round": "3",
        "version": "2",
        "members": "4",
        "steps": "12",
        "training bits per byte": "3.607",
        "tokens/s": "5.2k",
    }


def test_losses_are_given_per_token_where_only_tokens_are_known() -> None:
    known = dict(facts(Report(bits_per_byte=5.5, unit="bits per token")))
    assert (known["training bits per token"], known["held-out bits per token"]) == ("3.607", "5.500")
    assert not [name for name in known if "byte" in name]


def test_round_zero_is_a_round() -> None:
    assert ("round", "0") in facts(Report(round=0))


def test_version_zero_is_a_version() -> None:
    assert ("version", "0") in facts(Report(version=0))


def test_nothing_waited_for_is_no_sentence() -> None:
    assert waiting(Report()) == ""


@pytest.mark.parametrize(("seconds", "said"), [(0, "0 s"), (59.9, "59 s"), (65, "1 min 05 s"), (7800, "2 h 10 min"), (-1, "0 s")])
def test_durations_read_like_speech(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(("number", "said"), [(0, "0"), (999, "999"), (6340, "6.3k"), (120_000, "120k"), (12_345_678, "12.3M")])
def test_amounts_have_three_digits(number: float, said: str) -> None:
    assert amount(number) == said


def test_byte_counts_are_powers_of_ten() -> None:
    assert [byte_count(n) for n in (12, 6300, 46_100_000, 1.2e9)] == ["12 B", "6.3 kB", "46.1 MB", "1.2 GB"]


def test_the_panel_shows_the_newest_progress_and_does_not_read_brackets_as_markup() -> None:
    from rich.console import Console

    above: list[str] = []
    panel = Panel("shoal peer anna", above.append)
    console = Console(width=100, force_terminal=False)
    with console.capture() as captured:
        console.print(panel)
    assert "starting" in captured.get()
    panel.watch(replace(Report(), waiting_for="a peer [red] at [::1]:7600"))
    with console.capture() as captured:
        console.print(panel)
    assert "a peer [red] at [::1]:7600" in captured.get()
    panel.watch(Report("joining", 0, -1, 0, 0, 0.0, 0.0))
    with console.capture() as later:
        console.print(panel)
    assert len(later.get().splitlines()) == len(captured.get().splitlines()), "nothing jumps"
    panel.say("hello")
    assert above == ["hello"]
