"""Request and reply over topics, with a broker of its own.

python examples/request_reply.py
"""

from __future__ import annotations

import asyncio

from oberth.client import (
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    create_reply_message,
)
from oberth.errors import RequestTimeoutError
from oberth.testing.embedded_broker import EmbeddedBroker


async def main() -> None:
    """Ask for some squares, and for one that nobody answers."""
    async with (
        EmbeddedBroker() as mq,
        Producer("asker", namesrv_addr=mq.namesrv_addr) as asker,
        Producer("answerer", namesrv_addr=mq.namesrv_addr) as answerer,
    ):

        async def square(request: MessageExt) -> None:
            if request.body.isdigit():
                body = str(int(request.body) ** 2).encode()
                await answerer.send(create_reply_message(request, body))

        async with PushConsumer(
            "squares",
            {"Squares": "*"},
            listener=square,
            namesrv_addr=mq.namesrv_addr,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        ):
            replies = await asyncio.gather(
                *(asker.request(Message("Squares", str(n).encode()), 5000) for n in range(5))
            )
            print("squares:", *(reply.body.decode() for reply in replies))
            try:
                await asker.request(Message("Squares", b"pear"), 300)
            except RequestTimeoutError as error:
                print("no answer:", "within 300 ms" in str(error))


if __name__ == "__main__":
    asyncio.run(main())
