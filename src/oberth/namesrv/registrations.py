"""What brokers say of themselves in registrations (103), and what comes of that.

RocketMQ: ``RegisterBrokerRequestHeader``, ``RegisterBrokerResult``.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

BROKER_TIMEOUT_MS: Final = 120_000
"""After so much silence a broker is gone, unless it asked for another time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker says of itself in 103.

    Attributes:
        cluster: cluster name.
        broker_name: shared by a master and its slaves.
        broker_id: 0 is the master.
        broker_addr: where clients reach it.
        ha_server_addr: where slaves reach it.
        timeout_ms: silence after which it is gone.
        enable_acting_master: whether a slave may stand in for the master; None: a broker that does
            not know the question (4.9).
        zone_name: for clients that want brokers of their zone only.
        connection: whatever stands for the connection that the registration came on.
    """

    cluster: str
    broker_name: str
    broker_id: int
    broker_addr: str
    ha_server_addr: str
    timeout_ms: int = BROKER_TIMEOUT_MS
    enable_acting_master: bool | None = None
    zone_name: str | None = None
    connection: Hashable = None


@dataclass(frozen=True, slots=True)
class MinBrokerIdChange:
    """The smallest id of a broker name is another one: tell ``targets`` (905).

    Attributes:
        broker_name: whose.
        min_broker_id: the smallest id now.
        min_broker_addr: its address.
        offline_broker_addr: the broker that went away; None when one came.
        ha_broker_addr: where slaves of the smallest reach it.
        targets: addresses of brokers to tell.
    """

    broker_name: str
    min_broker_id: int
    min_broker_addr: str
    offline_broker_addr: str | None
    ha_broker_addr: str
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """What became of a registration.

    Attributes:
        accepted: False: refused, the broker must register with its full table first.
        master_addr: for a slave, the master's address.
        ha_server_addr: for a slave, the master's HA address.
        changes: announcements to make.
    """

    accepted: bool
    master_addr: str | None = None
    ha_server_addr: str | None = None
    changes: tuple[MinBrokerIdChange, ...] = ()
