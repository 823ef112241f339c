"""Namespaces: names of topics and groups as brokers see them, and as programs do.

A client with a namespace ``shop`` sends ``orders`` to the topic ``shop%orders``, and is given the
messages back as of ``orders``; retry topics and dead letters keep their prefix in front. What is
always true: a name that has the namespace gets no second one, and brokers' own names get none.
RocketMQ: NamespaceUtil.
"""

from __future__ import annotations

from typing import Final

from oberth.errors import MQClientError
from oberth.formats import names
from oberth.remoting.bodies.base import MessageQueue

SEPARATOR: Final = "%"

_PREFIXES: Final = (names.RETRY_PREFIX, names.DLQ_PREFIX)


def _split(name: str) -> tuple[str, str]:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def with_namespace(namespace: str, name: str) -> str:
    """A topic or group as brokers know it.

    >>> with_namespace("shop", "%RETRY%payers")
    '%RETRY%shop%payers'
    """
    if not namespace or not name or names.is_system_topic(name) or names.is_system_group(name):
        return name
    prefix, rest = _split(name)
    own = namespace + SEPARATOR
    return name if rest.startswith(own) else f"{prefix}{own}{rest}"


def without_namespace(namespace: str, name: str) -> str:
    """A topic or group as the program knows it; those of other namespaces stay as they are.

    >>> without_namespace("shop", "%RETRY%shop%payers")
    '%RETRY%payers'
    """
    if not namespace:
        return name
    prefix, rest = _split(name)
    own = namespace + SEPARATOR
    return prefix + rest[len(own) :] if rest.startswith(own) else name


def queue_with_namespace(namespace: str, queue: MessageQueue) -> MessageQueue:
    """A queue as brokers know it.

    Raises:
        MQClientError: it is no queue.
    """
    if not isinstance(queue, MessageQueue):
        raise MQClientError(
            f"mq is {queue!r:.80}; it must be a MessageQueue: fetch_publish_message_queues(topic) "
            "gives those of a topic"
        )
    return _renamed(queue, with_namespace(namespace, queue.topic))


def queue_without_namespace(namespace: str, queue: MessageQueue) -> MessageQueue:
    """A queue as the program knows it."""
    return _renamed(queue, without_namespace(namespace, queue.topic))


def _renamed(queue: MessageQueue, topic: str) -> MessageQueue:
    if topic == queue.topic:
        return queue
    return MessageQueue(topic=topic, broker_name=queue.broker_name, queue_id=queue.queue_id)
