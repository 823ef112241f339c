"""A web service on FastAPI that sends and consumes; needs `pip install fastapi uvicorn`.

    NAMESRV_ADDR=127.0.0.1:9876 uvicorn examples.web_service:app

One producer and one consumer live as long as the service: they start and stop with it, on its loop.
POST /orders sends, GET /orders shows what came back through the broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request

from oberth.client import ConsumeFromWhere, Message, MessageExt, Producer, PushConsumer
from oberth.errors import ClientError, RemotingError

TOPIC = "WebOrders"
SHOWN_MAX = 100


@asynccontextmanager
async def lifespan(service: FastAPI) -> AsyncIterator[None]:
    """Start and stop the clients with the service."""
    seen: deque[str] = deque(maxlen=SHOWN_MAX)

    async def handle(message: MessageExt) -> None:
        seen.append(message.body.decode())

    async with (
        Producer("web-orders") as producer,
        PushConsumer(
            "web-orders",
            {TOPIC: "*"},
            listener=handle,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        ),
    ):
        service.state.producer = producer
        service.state.seen = seen
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def create(request: Request) -> dict[str, str]:
    """Send an order; 503 when the cluster does not take it."""
    producer: Producer = request.app.state.producer
    body = await request.body()
    try:
        result = await producer.send(Message(TOPIC, body))
    except (RemotingError, ClientError) as error:
        raise HTTPException(503, str(error)) from error
    return {"msg_id": result.msg_id}


@app.get("/orders")
async def shown(request: Request) -> list[str]:
    """The orders that were consumed last."""
    return list(request.app.state.seen)
