"""Role: what a controller has made of a broker, for one life of its `Broker`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from oberth.remoting.bodies.controller import SyncStateSet


class ChangeRefusedError(Exception):
    """The controller does not change the sync set as asked."""


class RoleKeeper(Protocol):
    """Who speaks to the controller."""

    async def alter_sync_set(self, epoch: int, wanted: SyncStateSet) -> SyncStateSet:
        """Ask for another sync set; gives the new one.

        Args:
            epoch: of the master that asks.
            wanted: the members, and the epoch of the set that they replace.

        Raises:
            ChangeRefusedError: the controller says no.
            OberthError: it does not answer; it may have made the change.
        """

    def must_cut(self, offset: int) -> None:
        """This slave's log is not the master's from an offset on: it is to be cut there."""

    def look_soon(self) -> None:
        """Something has changed at the controller, somebody says: ask it."""


@dataclass(frozen=True, slots=True)
class Role:
    """What one broker is.

    Attributes:
        broker_id: of the controller, 1 or more; to clients a master is 0.
        is_master: whether it takes messages.
        epoch: of the master, its own or the one that it follows.
        master_address: where the master serves requests; None while there is none.
        in_sync: ids of the sync set.
        in_sync_epoch: of that set.
        keeper: who speaks to the controller.
    """

    broker_id: int
    is_master: bool
    epoch: int
    master_address: str | None
    in_sync: frozenset[int]
    in_sync_epoch: int
    keeper: RoleKeeper
