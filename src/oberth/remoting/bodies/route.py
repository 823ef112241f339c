"""Bodies about where topics and brokers are: 105, 106, 206, 217, 219, 224, 300, 304, 901, ..."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

import msgspec

from oberth.formats.json_writer import Shown, config_in_slices, format_config
from oberth.remoting.bodies.base import Body

MASTER_ID: Final = 0
"""The broker id that stands for the master."""


def _with_bare_ids(data: bytes) -> Any:
    """The document in ``data``, broker ids as integers: the writer puts no quotes around those."""
    document = msgspec.json.decode(data)
    brokers = document.get("brokerDatas") or document.get("brokerAddrTable", {}).values()
    for broker in brokers:
        addresses = broker["brokerAddrs"]
        broker["brokerAddrs"] = {int(broker_id): addr for broker_id, addr in addresses.items()}
    return document


class QueueData(Body):
    """A topic's queues on one broker; ``perm`` is READ 4, WRITE 2, INHERIT 1."""

    broker_name: str
    perm: int
    read_queue_nums: int
    topic_sys_flag: int = 0
    write_queue_nums: int = 0


class BrokerData(Body):
    """The addresses of one broker name, by broker id; id 0 is the master."""

    broker_addrs: dict[int, str] = msgspec.field(default_factory=dict)
    broker_name: str = ""
    cluster: str = ""
    enable_acting_master: bool = False
    zone_name: str | None = None

    def address(self) -> str | None:
        """The master, else any other."""
        master = self.broker_addrs.get(MASTER_ID)
        return master if master is not None else next(iter(self.broker_addrs.values()), None)


_decode: Final = msgspec.json.decode


def _shown(body: Body) -> Any:
    return _decode(body.encode())


def _shown_broker(broker: BrokerData) -> Any:
    return {**_shown(broker), "brokerAddrs": broker.broker_addrs}


class TopicRouteData(Body):
    """Answer of 105 and body of 217.

    Attributes:
        topic_queue_mapping_by_broker: of a static topic. Objects, or for the encodings in slices
            texts (``msgspec.Raw``) without nulls.
    """

    broker_datas: list[BrokerData] = msgspec.field(default_factory=list)
    filter_server_table: dict[str, list[str]] = msgspec.field(default_factory=dict)
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = msgspec.field(default_factory=list)
    topic_queue_mapping_by_broker: dict[str, Any] | None = None

    def encode_old(self) -> bytes:
        """As fastjson writes it: broker ids bare. For clients before V4_9_4."""
        return format_config(_with_bare_ids(self.encode()), pretty=False).encode()

    def encode_old_in_slices(self) -> Generator[None, None, bytearray]:
        """`encode_old` for any number of brokers, of mappings as texts: yields as it writes."""
        mappings = self.topic_queue_mapping_by_broker
        fields = {
            "brokerDatas": Shown(self.broker_datas, _shown_broker),
            "filterServerTable": self.filter_server_table,
            "orderTopicConf": self.order_topic_conf,
            "queueDatas": Shown(self.queue_datas, _shown),
            "topicQueueMappingByBroker": None if mappings is None else Shown(mappings, _decode),
        }
        return (yield from config_in_slices(fields))


class ClusterInfo(Body):
    """Answer of 106."""

    broker_addr_table: dict[str, BrokerData] = msgspec.field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = msgspec.field(default_factory=dict)

    def encode_old(self) -> bytes:
        """As fastjson writes it: broker ids bare."""
        return format_config(_with_bare_ids(self.encode()), pretty=False).encode()

    def encode_old_in_slices(self) -> Generator[None, None, bytearray]:
        """`encode_old` for any number of brokers: yields about each millisecond."""
        return (
            yield from config_in_slices(
                {
                    "brokerAddrTable": Shown(self.broker_addr_table, _shown_broker),
                    "clusterAddrTable": self.cluster_addr_table,
                }
            )
        )


class TopicList(Body):
    """Answer of 206, 224, 304, 305, 311 to 313 and 343."""

    broker_addr: str | None = None
    topic_list: list[str] = msgspec.field(default_factory=list)


class GroupList(Body):
    """Answer of 300."""

    group_list: list[str] = msgspec.field(default_factory=list)


class KVTable(Body):
    """Answer of 28 and 219, and of 103 with order configuration."""

    table: dict[str, str] = msgspec.field(default_factory=dict)


class BrokerMemberGroup(Body):
    """The members of one broker name."""

    broker_addrs: dict[int, str] = msgspec.field(default_factory=dict)
    broker_name: str = ""
    cluster: str = ""


class GetBrokerMemberGroupResponseBody(Body):
    """Answer of 901."""

    broker_member_group: BrokerMemberGroup | None = None
