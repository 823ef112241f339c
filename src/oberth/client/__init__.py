"""The client: producers, consumers and administration, for Oberth and for Apache RocketMQ.

Everything here is asynchronous; ``oberth.client.blocking`` has the same names for programs without
an event loop. Names are imported when they are first used, so a program pays for what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from oberth.client.admin import Admin as Admin
    from oberth.client.config import ClientConfig as ClientConfig
    from oberth.client.consume import ConsumeContext as ConsumeContext
    from oberth.client.consume import ConsumeStatus as ConsumeStatus
    from oberth.client.messages import Message as Message
    from oberth.client.messages import MessageExt as MessageExt
    from oberth.client.messages import SendResult as SendResult
    from oberth.client.messages import SendStatus as SendStatus
    from oberth.client.pop_consumer import PopConsumer as PopConsumer
    from oberth.client.producer import Producer as Producer
    from oberth.client.pull_consumer import PullConsumer as PullConsumer
    from oberth.client.push_consumer import PushConsumer as PushConsumer
    from oberth.client.request_reply import create_reply_message as create_reply_message
    from oberth.client.selectors import select_by_hash as select_by_hash
    from oberth.client.selectors import select_by_random as select_by_random
    from oberth.client.subscriptions import MessageSelector as MessageSelector
    from oberth.client.transactions import LocalTransactionState as LocalTransactionState
    from oberth.client.transactions import TransactionListener as TransactionListener
    from oberth.client.transactions import TransactionProducer as TransactionProducer
    from oberth.client.transactions import TransactionSendResult as TransactionSendResult
    from oberth.remoting.bodies.base import MessageQueue as MessageQueue
    from oberth.remoting.bodies.clients import ConsumeFromWhere as ConsumeFromWhere
    from oberth.remoting.bodies.clients import MessageModel as MessageModel

_HOMES: Final = {
    "create_reply_message": "oberth.client.request_reply",
    "PopConsumer": "oberth.client.pop_consumer",
    "PullConsumer": "oberth.client.pull_consumer",
    "TransactionSendResult": "oberth.client.transactions",
    "TransactionListener": "oberth.client.transactions",
    "LocalTransactionState": "oberth.client.transactions",
    "TransactionProducer": "oberth.client.transactions",
    "Admin": "oberth.client.admin",
    "MessageModel": "oberth.remoting.bodies.clients",
    "ConsumeFromWhere": "oberth.remoting.bodies.clients",
    "PushConsumer": "oberth.client.push_consumer",
    "ConsumeStatus": "oberth.client.consume",
    "ConsumeContext": "oberth.client.consume",
    "ClientConfig": "oberth.client.config",
    "Message": "oberth.client.messages",
    "MessageExt": "oberth.client.messages",
    "MessageQueue": "oberth.remoting.bodies.base",
    "MessageSelector": "oberth.client.subscriptions",
    "Producer": "oberth.client.producer",
    "SendResult": "oberth.client.messages",
    "SendStatus": "oberth.client.messages",
    "select_by_hash": "oberth.client.selectors",
    "select_by_random": "oberth.client.selectors",
}

__all__ = tuple(sorted(_HOMES))


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
