"""An order system: transactions, retries and dead letters, with a broker of its own.

    python examples/orders.py

An order is written to a database and announced in one transaction: the message is delivered just if
the database committed. A payment service consumes orders; the first attempt of one fails and is
tried again, one order can never be paid and ends as a dead letter. The broker's clock is set
forward, so the delays between attempts take no time.
"""

from __future__ import annotations

import asyncio
import sqlite3

from oberth.client import (
    ConsumeFromWhere,
    LocalTransactionState,
    Message,
    MessageExt,
    PushConsumer,
    TransactionProducer,
)
from oberth.testing.embedded_broker import EmbeddedBroker

TOPIC = "Orders"
ATTEMPTS = 2


class OrderBook:
    """The database, and the producer's side of its transactions."""

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:", check_same_thread=False)
        self.database.execute("create table orders (id text primary key, amount integer)")

    async def execute_local_transaction(self, msg: Message, arg: object) -> LocalTransactionState:
        """Insert the order; the message is delivered if that commits."""
        order_id, amount = msg.keys, int(msg.body)
        try:
            with self.database:
                self.database.execute("insert into orders values (?, ?)", (order_id, amount))
        except sqlite3.IntegrityError:
            return LocalTransactionState.ROLLBACK_MESSAGE
        # The verdict of this one gets lost: the broker will ask.
        if order_id == "order-3":
            return LocalTransactionState.UNKNOW
        return LocalTransactionState.COMMIT_MESSAGE

    async def check_local_transaction(self, msg: MessageExt) -> LocalTransactionState:
        """Whether the order is there."""
        found = self.database.execute("select 1 from orders where id = ?", (msg.keys,)).fetchone()
        if found:
            return LocalTransactionState.COMMIT_MESSAGE
        return LocalTransactionState.ROLLBACK_MESSAGE


async def main() -> None:
    """Run the story and print what happened."""
    book = OrderBook()
    paid: list[str] = []

    async def pay(message: MessageExt) -> None:
        order, amount = message.keys, int(message.body)
        if amount < 0:
            raise ValueError(f"{order}: nobody pays {amount}")
        if order == "order-2" and message.reconsume_times == 0:
            raise TimeoutError(f"{order}: the bank does not answer")
        paid.append(order)
        print(f"paid {order}, attempt {message.reconsume_times + 1}")

    async with (
        EmbeddedBroker({"transactionCheckMax": "1000"}) as mq,
        TransactionProducer("order-book", book, namesrv_addr=mq.namesrv_addr) as producer,
        PushConsumer(
            "payments",
            {TOPIC: "*"},
            listener=pay,
            max_reconsume_times=ATTEMPTS,
            namesrv_addr=mq.namesrv_addr,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        ),
    ):
        for order, amount in (
            ("order-1", 10), ("order-2", 20), ("order-3", 30), ("order-4", -1), ("order-1", 99),
        ):  # fmt: skip
            message = Message(TOPIC, str(amount).encode(), keys=order)
            result = await producer.send_message_in_transaction(message)
            print(f"{order} {amount}: {result.local_transaction_state.name}")

        def settled() -> bool:
            # The broker asks about order-3 every half minute; time runs fast here, and on a busy
            # machine the answer may come after many questions.
            mq.advance(seconds=3)
            return len(paid) == 3 and len(mq.dead_letters("payments")) == 1

        await mq.wait_until(settled, timeout_s=100, what="all orders settled")
        (dead,) = mq.dead_letters("payments")
        print(f"dead letter: {dead.keys} {dead.body.decode()}")
        print(f"paid {sorted(paid)}")


if __name__ == "__main__":
    asyncio.run(main())
