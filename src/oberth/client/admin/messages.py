"""Reading messages as an administrator: by id, by key, by offset."""

from __future__ import annotations

from typing import Final

from oberth.client.admin.base import QUERY_TIMEOUT_S, AdminBase, Silent, ask_each
from oberth.client.messages import MessageExt, decode_messages
from oberth.client.pulling import (
    PullResult,
    PullTemplate,
    pull,
)
from oberth.client.subscriptions import build_subscription_data
from oberth.errors import MQBrokerError
from oberth.formats import names
from oberth.formats.message_id import decode_offset_message_id
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.stats import (
    QueryConsumeQueueResponseBody,
)
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import create_request
from oberth.remoting.headers.admin import (
    QueryConsumeQueueRequestHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
QUERY_COUNT_MAX: Final = 64


class MessageAdmin(AdminBase):
    """Messages, and the queue units that lead to them."""

    async def view_message(
        self, topic: str, msg_id: str, *, silent: Silent | None = None
    ) -> MessageExt:
        """A message by either kind of id. RocketMQ: viewMessage.

        Args:
            topic: whose message.
            msg_id: its offset message id or its unique key.
            silent: gets the error of each broker that was asked for a unique key and does not
                answer; None: it is raised.

        Raises:
            MQBrokerError: there is none (code 208 or what the broker says).
        """
        try:
            place = decode_offset_message_id(msg_id)
        except ValueError:
            place = None
        known = {addr for by_id in (await self._known_brokers()).values() for addr in by_id}
        if place is not None and place.broker_address in known:
            try:
                body = await self._ask(
                    place.broker_address,
                    RequestCode.VIEW_MESSAGE_BY_ID,
                    ViewMessageRequestHeader(offset=place.commit_log_offset, topic=topic),
                )
                return decode_messages(body)[0]
            except (MQBrokerError, IndexError):
                pass  # both ids have 32 digits: this one is the client's
        found = await self.query_message_by_unique_key(topic, msg_id, silent=silent)
        if not found:
            raise MQBrokerError(ResponseCode.NO_MESSAGE, f"no message {msg_id} in {topic}")
        return found[0]

    async def _known_brokers(self) -> dict[str, list[str]]:
        info = await self.cluster_info()
        return {
            name: list(data.broker_addrs.values()) for name, data in info.broker_addr_table.items()
        }

    async def query_message(
        self,
        topic: str,
        key: str,
        *,
        max_num: int = QUERY_COUNT_MAX,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        silent: Silent | None = None,
    ) -> list[MessageExt]:
        """Messages with a word among their keys, the oldest first.

        Args:
            topic: whose messages.
            key: the word.
            max_num: messages that a broker gives at most.
            begin_ms: stored at this time or later.
            end_ms: stored at this time or earlier.
            silent: gets the error of each broker that does not answer; None: it is raised.
        """
        found = await self._query(
            topic, key, max_num, begin_ms, end_ms, unique=False, silent=silent
        )
        return [message for message in found if key in message.keys.split(" ")]

    async def query_message_by_unique_key(
        self, topic: str, msg_id: str, *, max_num: int = 32, silent: Silent | None = None
    ) -> list[MessageExt]:
        """Messages with an id that a client gave; more than one if it was sent twice.

        Args:
            topic: whose messages.
            msg_id: the id.
            max_num: messages that a broker gives at most.
            silent: gets the error of each broker that does not answer; None: it is raised.
        """
        found = await self._query(topic, msg_id, max_num, 0, 2**63 - 1, unique=True, silent=silent)
        return [message for message in found if message.msg_id == msg_id]

    async def _query(
        self,
        topic: str,
        key: str,
        max_num: int,
        begin_ms: int,
        end_ms: int,
        *,
        unique: bool,
        silent: Silent | None = None,
    ) -> list[MessageExt]:
        header = QueryMessageRequestHeader(
            topic=topic, key=key, max_num=max_num, begin_timestamp=begin_ms, end_timestamp=end_ms
        )

        async def ask(broker_name: str, addr: str) -> list[MessageExt]:
            request = create_request(RequestCode.QUERY_MESSAGE, header)
            assert request.ext_fields is not None
            request.ext_fields[UNIQUE_KEY_QUERY] = "true" if unique else "false"
            response = await self._invoke(addr, request, QUERY_TIMEOUT_S)
            if response.code == ResponseCode.QUERY_NOT_FOUND:
                return []
            if response.code != ResponseCode.SUCCESS:
                raise MQBrokerError(response.code, response.remark or "", addr)
            return decode_messages(response.body_bytes(), broker_name)

        answers = await ask_each(await self._masters_of(topic), ask, silent)
        found = [message for answer in answers.values() for message in answer]
        found.sort(key=lambda message: message.store_timestamp)
        return found

    async def pull(
        self, queue: MessageQueue, offset: int, *, max_num: int = 32, expression: str = "*"
    ) -> PullResult:
        """Read messages of a queue without being a consumer and without waiting."""
        template = PullTemplate(
            names.TOOLS_CONSUMER_GROUP,
            queue,
            build_subscription_data(queue.topic, expression, 0),
            max_msg_nums=max_num,
            with_subscription=True,
            suspend_timeout_ms=0,
        )
        if self._client().broker_address(queue.broker_name) is None:
            await self._masters_of(queue.topic)
        return await pull(self._client(), template, offset, sys_flag=4, timeout_s=self._timeout_s)

    async def query_consume_queue(
        self, addr: str, topic: str, queue_id: int, index: int, count: int, group: str = ""
    ) -> QueryConsumeQueueResponseBody:
        """Units of a queue, as they lie on the broker's disk."""
        header = QueryConsumeQueueRequestHeader(
            topic=topic, queue_id=queue_id, index=index, count=count, consumer_group=group or None
        )
        return QueryConsumeQueueResponseBody.decode(
            await self._ask(addr, RequestCode.QUERY_CONSUME_QUEUE, header)
        )
