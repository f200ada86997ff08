"""Who reduces how much: shares that make the slowest link's time as short as the links allow. Pure questions, no state.

The programme. Let the vector be 1 and peer i reduce the share w_i of it. Over its uplink go its contributions to the others' shares
and the results of its own, over its downlink the contributions to its own share and the results of the others':

    up_i(w)   = [i contributes]·(1 - w)·s + w·r·(collectors beside i)
    down_i(w) = w·s·(contributors beside i) + [i collects]·(1 - w)·r
    T_i(w)    = max(up_i(w) / u_i, down_i(w) / d_i)          u, d: rates; s, r: sizes of the vector as it is sent and returned

Minimise max T_i(w_i) with w ≥ 0 and Σ w = 1. For s = r and everybody contributing and collecting this is the programme of
hivemind's load balancing (github.com/learning-at-home/hivemind, `averaging/load_balancing.py`), both directions told apart. It is
degenerate where one slow link alone sets the time, so it is solved by *water-filling* and not by a simplex: raise the level ξ and
give each peer the largest share that it can finish within ξ, until the shares cover the vector. Then those beside a bottleneck
are as fast as they can be, too, and equal rates get equal shares.

Neighbours: `core` measures and plans; `rounds` keeps the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.protocol.messages import Contact, Section, Share

REDUCERS_LIMIT = 64
"""More would make parts small and streams many; those with the fastest links are taken."""
CLIP = 4.0
"""A link is believed to be at most so many times as fast as the others are: what a peer says of itself is its own word, and a wrong
one must not bring it all the parts."""
_HALVINGS = 60
"""Of the interval in which the level is sought: to the precision of a float."""


@dataclass(frozen=True)
class Link:
    """One member of a plan. Rates in bytes per second; 0: not measured yet, which is taken for the mean of the measured ones."""

    contact: Contact
    up_bytes_s: float = 0.0
    down_bytes_s: float = 0.0
    contributes: bool = True
    collects: bool = True
    reduces: bool = True
    """Others can dial it, and it may be trusted with a share."""


@dataclass(frozen=True)
class _Load:
    """T_i as the larger of two lines: seconds without a share, and seconds more for the whole vector, up and down."""

    lines: tuple[tuple[float, float], tuple[float, float]]

    def seconds(self, share: float) -> float:
        return max(start + slope * share for start, slope in self.lines)

    def best(self) -> float:
        """The share with the shortest time, the smallest of them."""
        (a, b), (c, d) = self.lines
        meet = (c - a) / (b - d) if b != d else 0.0
        return min((0.0, min(1.0, max(0.0, meet)), 1.0), key=lambda share: (self.seconds(share), share))

    def within(self, level: float) -> tuple[float, float]:
        """The smallest and the largest share that take at most `level` seconds; the best one twice where none does."""
        low, high = 0.0, 1.0
        for start, slope in self.lines:
            if slope > 0:
                high = min(high, (level - start) / slope)
            elif slope < 0:
                low = max(low, (level - start) / slope)
            elif start > level:
                high = -1.0
        if low > high:
            low = high = self.best()
        return low, high


def assumed_rates(links: Sequence[Link]) -> list[tuple[float, float]]:
    """Up and down of each link, where what was not measured is the mean of what was."""
    ups, downs = _believed([link.up_bytes_s for link in links]), _believed([link.down_bytes_s for link in links])
    up, down = (_mean(rates) or _mean(others) or 1.0 for rates, others in ((ups, downs), (downs, ups)))
    return [(one or up, other or down) for one, other in zip(ups, downs, strict=True)]


def _believed(rates: Sequence[float]) -> list[float]:
    """The rates, those of outliers cut to what `CLIP` allows beside the median of the others."""
    known = sorted(rate for rate in rates if rate > 0)
    if len(known) < 2:
        return list(rates)
    believed = []
    for rate in rates:
        others = known.copy()
        if rate > 0:
            others.remove(rate)
        believed.append(min(rate, CLIP * others[(len(others) - 1) // 2]))
    return believed


def _mean(rates: Sequence[float]) -> float:
    """Of those that are known; 0 when none is."""
    known = [rate for rate in rates if rate > 0]
    return sum(known) / len(known) if known else 0.0


def _loads(links: Sequence[Link], sent: float, returned: float) -> list[_Load]:
    contributors = sum(link.contributes for link in links)
    collectors = sum(link.collects for link in links)
    loads = []
    for link, (up, down) in zip(links, assumed_rates(links), strict=True):
        own, back = link.contributes * sent, link.collects * returned
        results, contributions = returned * (collectors - link.collects), sent * (contributors - link.contributes)
        loads.append(_Load(((own / up, (results - own) / up), (back / down, (contributions - back) / down))))
    return loads


def slowest_s(links: Sequence[Link], fractions: Sequence[float], sent: float = 1.0, returned: float = 1.0) -> float:
    """Seconds that the slowest link takes at these shares; `sent` and `returned`: the vector's bytes on the way there and back."""
    loads = _loads(links, sent, returned)
    return max(load.seconds(share) for load, share in zip(loads, fractions, strict=True))


def fractions(links: Sequence[Link], sent: float = 1.0, returned: float = 1.0) -> list[float]:
    """The share of each link, adding up to 1; all 0 when nobody reduces."""
    chosen = _reducers(links)
    result = [0.0] * len(links)
    if not chosen:
        return result
    loads = _loads(links, sent, returned)
    low, high = 0.0, max(loads[index].seconds(share) for index in chosen for share in (0.0, 1.0))
    for _ in range(_HALVINGS):
        level = (low + high) / 2
        ranges = [loads[index].within(level) for index in chosen]
        if sum(least for least, _ in ranges) <= 1 <= sum(most for _, most in ranges):
            high = level
        else:
            low = level
    ranges = [loads[index].within(high) for index in chosen]
    least, most = sum(least for least, _ in ranges), sum(most for _, most in ranges)
    along = (1 - least) / (most - least) if most > least else 0.0
    for index, (start, stop) in zip(chosen, ranges, strict=True):
        result[index] = start + (stop - start) * along
    return result


def _reducers(links: Sequence[Link]) -> list[int]:
    """Whose links carry shares: the fastest of those that can, in the order given."""
    rates = assumed_rates(links)
    able = [index for index, link in enumerate(links) if link.reduces]
    fastest = sorted(able, key=lambda index: (-min(rates[index]), index))
    return sorted(fastest[:REDUCERS_LIMIT])


def counts(parts: int, links: Sequence[Link], sent: float = 1.0, returned: float = 1.0) -> list[int]:
    """How many of `parts` equal parts each link reduces: the fractions rounded down, then each part that is left to the link that
    is done first with it. That is the best possible in whole parts, because no link gets faster by a part more."""
    wanted = fractions(links, sent, returned)
    whole = [int(share * parts + 1e-9) for share in wanted]
    loads, able = _loads(links, sent, returned), _reducers(links)
    for _ in range(parts - sum(whole) if able else 0):
        first = min(able, key=lambda index: (loads[index].seconds((whole[index] + 1) / parts), whole[index], index))
        whole[first] += 1
    return whole


def planned_shares(
    parts: int, links: Sequence[Link], section: Section, attempt: int = 0, sent: float = 1.0, returned: float = 1.0
) -> list[Share]:
    """Consecutive ranges of parts, one per reducer, in the order given; reducers without a part are left out."""
    shares, start = [], 0
    for link, count in zip(links, counts(parts, links, sent, returned), strict=True):
        if count:
            shares.append(Share(link.contact, section, start, start + count, attempt))
        start += count
    return shares
