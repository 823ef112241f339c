"""The client for programs without an event loop: the names of ``oberth.client``, blocking.

    with Producer("orders", namesrv_addr="127.0.0.1:9876") as producer:
        producer.send(Message("OrderTopic", b"42"))

Every class is derived from its asynchronous one, see ``blocking_face``. Types are in
``blocking.pyi``, which ``python -m oberth.client.blocking_stub`` writes.
"""

from __future__ import annotations

from oberth.client.admin import Admin as _Admin
from oberth.client.blocking_face import derive
from oberth.client.pop_consumer import PopConsumer as _PopConsumer
from oberth.client.producer import Producer as _Producer
from oberth.client.pull_consumer import PullConsumer as _PullConsumer
from oberth.client.push_consumer import PushConsumer as _PushConsumer
from oberth.client.transactions import TransactionProducer as _TransactionProducer

Admin = derive(_Admin, __name__)
PopConsumer = derive(_PopConsumer, __name__)
Producer = derive(_Producer, __name__)
PullConsumer = derive(_PullConsumer, __name__)
PushConsumer = derive(_PushConsumer, __name__)
TransactionProducer = derive(_TransactionProducer, __name__)

__all__ = [
    "Admin",
    "PopConsumer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "TransactionProducer",
]
