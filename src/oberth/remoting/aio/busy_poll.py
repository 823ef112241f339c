"""BusyPoll: keeps the loop awake for a peer that asks again as soon as it is answered.

A loop that sleeps is woken by the next request, and waking a processor that idles costs more than
serving a send does. For most peers that does not matter: while one is waited for, others keep the
loop busy. A lone sender that waits for each answer pays for it every time. So while requests come
one by one on one connection, each soon after the answer before, the loop looks at its sockets again
and again instead of sleeping, for a short time after each answer.

Each look offers the processor to other threads (sched_yield): the peer itself may run on
this machine, and polling without that takes from it what it needs to ask again. Where the processor
does not come back soon, others have work for it, and the loop sleeps for its requests as ever.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from time import perf_counter
from typing import Any, Final

SCORE_MIN: Final = 8
"""Points from which on the loop stays awake; a request soon after the answer before gives one."""

SCORE_MAX: Final = 16
SCORE_MISSED: Final = 4
"""Points that a request costs which comes later. One pause does not end polling, several do."""

CROWDED_S: Final = 0.001
"""Seconds that an offered processor stays away from which on the machine counts as busy: a peer
takes it for a tenth of that, a process that computes for three times as much."""

CROWDED_AGAIN_S: Final = 0.05
"""Seconds within which that must happen twice: once it does each second on a machine at rest."""

SCORE_CROWDED: Final = -1000
"""Points on a busy machine: there polling only loses turns to others."""

CPUS_MIN: Final = 2
"""Processors below which nobody polls: it would be the peer's own that is kept busy."""

CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
OWN_CGROUP: Final = Path("/proc/self/cgroup")


class BusyPoll:
    """Polls for one loop, after the answers of one server.

    Costs 0.3 us per read; while it polls, one processor, or what of it nobody else wants. Polling
    ends by itself ``window_s`` after the last answer, and begins again only after `SCORE_MIN`
    points.

    Args:
        loop: that runs the server.
        window_s: seconds after an answer for which the loop is kept awake; also how soon behind
            an answer the next request must come. A peer that takes longer is never polled for.
    """

    __slots__ = (
        "_answered",
        "_awake",
        "_channel",
        "_crowded",
        "_loop",
        "_score",
        "_until",
        "_window_s",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, window_s: float) -> None:
        self._loop = loop
        self._window_s = window_s
        self._channel: Any = None
        self._score = 0
        self._answered = 0.0
        self._until = 0.0
        self._awake = False
        self._crowded = 0.0  # when the processor was away for long

    @property
    def is_awake(self) -> bool:
        """Whether the loop is kept from sleeping."""
        return self._awake

    def served(self, channel: object, count: int, came: float) -> None:
        """``count`` requests of ``channel`` that were read at ``came`` have been worked on.

        ``came`` is a ``time.perf_counter()``; asyncio's own clock is too coarse on uvloop (1 ms).
        """
        now = perf_counter()
        if count == 1 and channel is self._channel:
            score = self._score
            if came - self._answered < self._window_s:
                if score < SCORE_MAX:
                    self._score = score = score + 1
            elif score > 0:
                self._score = score = max(0, score - SCORE_MISSED)
            if score >= SCORE_MIN:
                self._stay_awake(now)
        else:
            self._channel = channel
            self._score = 0
            self._until = 0.0
        self._answered = now

    def answered(self) -> None:
        """The answer to what was served last goes out only now: it had to wait, for a replica.

        The next request is due from now on. Until now the loop was kept awake for what the answer
        waited for, as that comes through a socket, too.
        """
        self._answered = now = perf_counter()
        if self._score >= SCORE_MIN:
            self._stay_awake(now)

    def _stay_awake(self, now: float) -> None:
        self._until = now + self._window_s
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        """One turn of the loop, in which it looks at its sockets without waiting for them."""
        now = perf_counter()
        if now >= self._until:
            self._awake = False
            return
        os.sched_yield()
        back = perf_counter()
        if back - now > CROWDED_S:
            self._awake = False
            self._until = 0.0
            self._score = SCORE_CROWDED if now - self._crowded < CROWDED_AGAIN_S else 0
            self._crowded = back
            return
        self._loop.call_soon(self._look)


def make_busy_poll(loop: asyncio.AbstractEventLoop, window_s: float) -> BusyPoll | None:
    """A BusyPoll, or None where it is not wanted or would do harm.

    ``window_s`` 0 wants none. It would do harm with fewer than `CPUS_MIN` processors, and where
    the system has no sched_yield.
    """
    if window_s <= 0 or not hasattr(os, "sched_yield") or usable_cpus() < CPUS_MIN:
        return None
    return BusyPoll(loop, window_s)


def usable_cpus(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUP) -> float:
    """Processors that this process may use: those it may run on, or less by a container's limit.

    Linux tells the limit in the control groups of the process and of all above it, ``cpu.max``
    (version 2) or ``cpu.cfs_quota_us`` (version 1); elsewhere there is none.
    """
    try:
        cpus = float(len(os.sched_getaffinity(0)))
    except AttributeError:  # not Linux
        return float(os.cpu_count() or 1)
    for directory in _own_groups(root, own):
        cpus = min(cpus, _limit_of(directory))
    return cpus


def _own_groups(root: Path, own: Path) -> list[Path]:
    """Directories of the process's control groups, up to the root's."""
    try:
        lines = own.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    directories = [root, root / "cpu"]
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        base = root / "cpu" if "cpu" in controllers.split(",") else root
        if controllers and base is root:
            continue  # version 1, another controller's
        parts = [part for part in path.split("/") if part]
        if ".." in parts:
            continue  # outside of what this process can see
        for part in parts:
            base /= part
            directories.append(base)
    return directories


def _limit_of(directory: Path) -> float:
    """Processors that a control group allows; infinite without a limit."""
    try:
        quota, period = (directory / "cpu.max").read_text("ascii").split()
    except (OSError, ValueError):
        try:
            quota = (directory / "cpu.cfs_quota_us").read_text("ascii").strip()
            period = (directory / "cpu.cfs_period_us").read_text("ascii").strip()
        except (OSError, ValueError):
            return float("inf")
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return float("inf")  # "max", and -1 in version 1
    return int(quota) / int(period)
