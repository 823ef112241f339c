"""How calm the machine is, and turns that are thrown away when that changed under them.

A spinning process on every core says how much of the cores it got, and how much work it did with a
second of them: other work takes the first, and a neighbour of the same core, or a slower clock, the
second. It hashes: a loop of Python alone is up to 1.7 times as fast in one process as in the next,
by where its memory lies. Measured before and after each turn of a benchmark; a turn between two
states that differ says nothing about its sides.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

SPIN_S: Final = 0.5
BLOCK: Final = bytes(4096)
"""Hashed over and over."""
SHARE_MIN: Final = 0.85
"""Of the cores that a spinning machine must get, before and after a turn."""
SPEED_MOVE_MAX: Final = 0.15
"""How much the work of a core's second may differ between the two."""
TRIES: Final = 3
"""How often a turn is taken before its figures are given up."""


@dataclass(frozen=True, slots=True)
class Calm:
    """One look at the machine.

    Attributes:
        share: of all cores that spinning processes got, 0 to 1.
        speed: blocks hashed in a second of a core.
    """

    share: float
    speed: float

    def as_json(self) -> dict[str, float]:
        """For reports."""
        return {"share": round(self.share, 3), "speed": round(self.speed)}


def moved(before: Calm, after: Calm) -> str | None:
    """Why a turn between these two looks does not count; None if it does."""
    for when, calm in (("before", before), ("after", after)):
        if calm.share < SHARE_MIN:
            return f"other work had {1 - calm.share:.0%} of the cores {when} it"
    if abs(after.speed / before.speed - 1) > SPEED_MOVE_MAX:
        return f"the cores' speed went from {before.speed:.3g} to {after.speed:.3g}"
    return None


def _spin(seconds: float) -> tuple[float, int]:
    """Processor seconds, and blocks hashed in them."""
    until = time.monotonic() + seconds
    began = time.process_time()
    rounds = 0
    while time.monotonic() < until:
        for _ in range(10):
            hashlib.sha256(BLOCK).digest()
        rounds += 10
    return time.process_time() - began, rounds


def look(seconds: float = SPIN_S) -> Calm:
    """Spin on every core for some time, once what a turn left to the disks is there."""
    if hasattr(os, "sync"):
        os.sync()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        pool.map(_spin, [0.0] * cores)  # its processes are there
        found = pool.map(_spin, [seconds] * cores, chunksize=1)
    used = sum(cpu_s for cpu_s, _ in found)
    return Calm(used / (seconds * cores), sum(rounds for _, rounds in found) / max(used, 1e-9))


@dataclass
class Watch:
    """Looks at the machine around each turn, and keeps what it saw.

    Attributes:
        look: looks at the machine.
        turns: of each turn its kind, its figures, both looks, and why it was thrown away if it was.
    """

    look: Callable[[], Calm] = look
    turns: list[dict[str, Any]] = field(default_factory=list)

    def take(
        self,
        kind: str,
        turn: Callable[[Callable[[str, float], None]], None],
        add: Callable[[str, float], None],
    ) -> bool:
        """Take a turn until it counts, at most TRIES times.

        Args:
            kind: the side.
            turn: is given what takes a key and a figure.
            add: gets the figures of the turn that counts.

        Returns:
            Whether one counted.
        """
        for _ in range(TRIES):
            figures: list[tuple[str, float]] = []
            before = self.look()
            turn(lambda key, figure, into=figures: into.append((key, figure)))  # type: ignore[misc]
            after = self.look()
            why = moved(before, after)
            self.turns.append(
                {
                    "kind": kind,
                    "figures": figures,
                    "before": before.as_json(),
                    "after": after.as_json(),
                    "thrown_away": why,
                }
            )
            if why is None:
                for key, figure in figures:
                    add(key, figure)
                return True
        return False
