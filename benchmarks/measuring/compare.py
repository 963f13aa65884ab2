"""Two files of figures: what moved by more than its noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import attrs

from measuring.results import Figure, Run

LEAST = 0.03
"""A change below this is never reported: two runs of the same code differ by as much."""

SINGLE = 0.25
"""The assumed noise of a figure from a single round."""

FACTOR = 2.0
"""A change is reported if it is larger than so many times the noise of both runs."""


@attrs.frozen
class Change:
    """A figure that both files have.

    Attributes:
        against: the peer whose figure it was divided by; "" where there is none, and figures are compared as they are.
        before, after: the ratios to the peer, or the figures.
        noise: by which the quotient of the two may differ from 1 without meaning anything.
    """

    program: str
    workload: str
    side: str
    against: str
    before: float
    after: float
    noise: float

    @property
    def quotient(self) -> float:
        """The new figure as a part of the old."""
        return self.after / self.before

    @property
    def moved(self) -> bool:
        """Whether it changed by more than its noise."""
        return abs(math.log(self.quotient)) > math.log1p(self.noise)


def changes(before: Sequence[Run], after: Sequence[Run]) -> list[Change]:
    """Return the changes of gtrace's figures; ratios to peers where both runs have the same ones."""
    old = {(run.program, figure.workload, figure.side): figure for run in before for figure in run.figures}
    found: list[Change] = []
    for run in after:
        by_workload: dict[str, list[Figure]] = {}
        for figure in run.figures:
            by_workload.setdefault(figure.workload, []).append(figure)
        for workload, figures in by_workload.items():
            known = [figure for figure in figures if (run.program, workload, figure.side) in old]
            peers = [figure for figure in known if not figure.ours]
            for figure in known:
                if figure.ours or len(peers) == len(known):
                    previous = old[run.program, workload, figure.side]
                    best = min(peers, key=lambda peer: peer.median) if figure.ours and peers else None
                    reference = None if best is None else old[run.program, workload, best.side]
                    found += _change(run.program, previous, figure, reference, best)
    return found


def _change(
    program: str, before: Figure, after: Figure, peer_before: Figure | None, peer_after: Figure | None
) -> Iterator[Change]:
    old, new = before.median, after.median
    figures = [before, after]
    against = ""
    if peer_before is not None and peer_after is not None:
        against, old, new = peer_after.side, old / peer_before.median, new / peer_after.median
        figures += [peer_before, peer_after]
    if old > 0 and new > 0:
        noises = (figure.noise if len(figure.samples) > 1 else SINGLE for figure in figures)
        noise = max(LEAST, FACTOR * math.sqrt(sum(value**2 for value in noises)))
        yield Change(program, after.workload, after.side, against, old, new, noise)


def warnings(before: Iterable[Run], after: Iterable[Run]) -> list[str]:
    """Return what makes the two files hard to compare: machines, versions, settings, and load."""
    old = {run.program: run for run in before}
    lines = []
    for run in after:
        previous = old.get(run.program)
        if previous is None:
            lines.append(f"{run.program}: only the second file has it")
            continue
        for what in ("machine", "versions", "settings"):
            a, b = getattr(previous, what), getattr(run, what)
            names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
            lines += [f"{run.program}: {what} differ: {name} {a.get(name)} and {b.get(name)}" for name in names]
        for name, one in (("first", previous), ("second", run)):
            if one.load.busy:
                lines.append(f"{run.program}: the {name} run was on a busy machine")
    return lines
