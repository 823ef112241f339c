"""TransactionCheck: asks producers what became of transactions that they have not ended."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from oberth.errors import RemotingError
from oberth.formats import names
from oberth.formats import properties as p
from oberth.formats.java_numbers import java_long
from oberth.remoting.code import RequestCode
from oberth.remoting.command import create_request
from oberth.remoting.headers.transaction import CheckTransactionStateRequestHeader

if TYPE_CHECKING:
    from collections.abc import Callable

    from oberth.broker.clients import ClientInfo
    from oberth.broker.producers import ProducerTable
    from oberth.broker.transactions import Transactions
    from oberth.formats.message import MessageExt
    from oberth.remoting.aio.channel import Channel

_LOG: Final = logging.getLogger(__name__)

STEP_PAUSE_S: Final = 0.005
"""Between two steps of a check, so that sends go on."""


class ProducerCheck:
    """Asks one producer of a group; the ``notify`` of `Transactions`.

    A producer's group is any text that a client says, and what it is asked shows the message: only
    who may send to its topic is asked.

    Args:
        producers: who is connected.
        broker_name: this broker's.
        may_publish: whether an access key, used from a host, may send to a topic.
    """

    def __init__(
        self,
        producers: ProducerTable,
        broker_name: str,
        may_publish: Callable[[str, str, str], bool],
    ) -> None:
        self._producers = producers
        self._broker_name = broker_name
        self._may_publish = may_publish

    def __call__(self, half: MessageExt, group: str, /) -> None:
        """39: what became of a transaction? The answer comes as an END_TRANSACTION."""
        properties = half.properties
        topic = properties.get(p.REAL_TOPIC, half.topic)

        def may(client: ClientInfo) -> bool:
            channel: Channel = client.channel  # type: ignore[assignment]
            return channel.hears and self._may_publish(
                channel.remote.host, client.access_key, topic
            )

        client = self._producers.next_client(group, may)
        if client is None:
            _LOG.warning(
                "transaction %s: no producer of %s is online that may send to %s, nobody is asked",
                half.uniq_key,
                group,
                topic,
            )
            return
        unique_key = half.uniq_key
        header = CheckTransactionStateRequestHeader(
            topic=names.TRANS_HALF_TOPIC,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.commit_log_offset,
            msg_id=unique_key,
            transaction_id=unique_key,
            offset_msg_id=f"{half.store_host.hex().upper()}{half.commit_log_offset:016X}",
        )
        queue_text = properties.get(p.REAL_QUEUE_ID, "0")
        body = half.under_topic(topic, queue_id=java_long(queue_text, 0))
        call = create_request(RequestCode.CHECK_TRANSACTION_STATE, header, body)
        assert call.ext_fields is not None
        call.ext_fields["bname"] = self._broker_name
        try:
            client.channel.invoke_oneway(call)  # type: ignore[attr-defined]
        except RemotingError as error:
            _LOG.warning(
                "transaction %s: its producer %s could not be asked: %s",
                unique_key,
                client.client_id,
                error,
            )


async def check_all(transactions: Transactions, dispatch_soon: Callable[[], None]) -> None:
    """One round over the half messages, in steps."""
    more = True
    while more:
        asked, more = transactions.check()
        if asked or more:
            dispatch_soon()
        await asyncio.sleep(STEP_PAUSE_S)
