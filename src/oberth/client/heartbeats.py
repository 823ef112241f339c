"""What a client tells brokers of itself: the brief form, and what says whether it changed."""

from __future__ import annotations

import msgspec

from oberth.formats.java_string import java_hash
from oberth.remoting.bodies.clients import HeartbeatData


def without_subscriptions(data: HeartbeatData) -> HeartbeatData:
    """The same heartbeat for a broker that knows the subscriptions."""
    return msgspec.structs.replace(
        data,
        consumer_data_set=[
            msgspec.structs.replace(each, subscription_data_set=[])
            for each in data.consumer_data_set
        ],
        without_sub=True,
    )


def heartbeat_fingerprint(data: HeartbeatData) -> int:
    """A number that changes with what a client produces and subscribes to, never 0.

    The same for all members of a group that subscribe alike: neither ids nor versions count.
    RocketMQ: HeartbeatData.computeHeartbeatFingerprint.
    """
    plain = msgspec.structs.replace(
        data,
        client_id="",
        heartbeat_fingerprint=0,
        consumer_data_set=[
            msgspec.structs.replace(
                each,
                subscription_data_set=[
                    msgspec.structs.replace(subscription, sub_version=0)
                    for subscription in each.subscription_data_set
                ],
            )
            for each in data.consumer_data_set
        ],
    )
    return java_hash(plain.encode().decode()) or 1
