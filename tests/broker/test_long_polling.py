"""Who waits for a message gets it when it comes: pulls and pops in any order with sends.

A lost wake-up is a consumer that sleeps until its time-out while there is something for it. Here
no waiting ends by itself: the brokers' clock stands still.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from oberth.errors import RemotingError
from oberth.formats.message import decode_record
from oberth.remoting.command import RemotingCommand

WAIT_MS = 60_000
ANSWER_S = 100.0
TAGS = ("a", "b", "c")


def pull_fields(live: Any, topic: str, offset: int, queue_id: int, tags: str) -> dict[str, str]:
    return live.peer.pull_fields(  # type: ignore[no-any-return]
        topic,
        offset,
        queue_id,
        group="G" + tags.strip("*").replace("|", ""),
        subscription=tags,
        sysFlag="6",
        suspendTimeoutMillis=str(WAIT_MS),
    )


def bodies_of(response: RemotingCommand) -> list[bytes]:
    body = response.body_bytes()
    found = []
    at = 0
    while at < len(body):
        message = decode_record(body, at)
        found.append(message.body)
        at += message.record_size
    return found


class Follower:
    """A consumer of one queue that pulls again as soon as it is answered."""

    def __init__(self, live: Any, peer: Any, topic: str, queue_id: int, tags: str) -> None:
        self.live = live
        self.peer = peer
        self.topic = topic
        self.queue_id = queue_id
        self.tags = tags
        self.bodies: list[bytes] = []

    async def run(self) -> None:
        offset = 0
        while True:
            response = await self.peer.call(
                11,
                pull_fields(self.live, self.topic, offset, self.queue_id, self.tags),
                timeout_s=ANSWER_S,
            )
            assert response.code in (0, 19, 20), response
            if response.code == 0:
                self.bodies += bodies_of(response)
            offset = int(response.fields["nextBeginOffset"])


@pytest.mark.parametrize("seed", range(4))
async def test_nobody_who_pulls_waits_beside_a_message(make_live: Any, seed: int) -> None:
    live = await make_live(flushDiskType="SYNC_FLUSH" if seed % 2 else "ASYNC_FLUSH")
    rng = random.Random(seed)
    await live.peer.send("T")
    sent: list[tuple[int, str, bytes]] = []
    followers = [
        Follower(live, live.another(), "T", queue_id, tags)
        for queue_id in range(2)
        for tags in ("*", "a", "b||c")
    ]
    tasks = [asyncio.create_task(each.run()) for each in followers]
    senders = [live.another() for _ in range(3)]

    async def send(peer: Any, number: int) -> None:
        for n in range(150):
            queue_id, tag = rng.randrange(2), rng.choice(TAGS)
            body = b"%d-%d" % (number, n)
            sent.append((queue_id, tag, body))
            await peer.send("T", body, queue_id, {"TAGS": tag})
            pause = rng.random()
            if pause < 0.3:
                await asyncio.sleep(0)
            elif pause < 0.5:
                await asyncio.sleep(rng.random() * 0.01)
            elif pause < 0.52:  # a burst, large enough for the compiled kernels
                bodies = [b"%d-%d-%d" % (number, n, i) + bytes(900) for i in range(20)]
                await peer.send_batch("T", bodies, queue_id)
                sent.extend((queue_id, "", each) for each in bodies)

    def wanted(each: Follower) -> list[bytes]:
        return sorted(
            body
            for queue_id, tag, body in [(0, "", b"hello"), *sent]
            if queue_id == each.queue_id and (each.tags == "*" or tag in each.tags.split("||"))
        )

    await asyncio.gather(*(send(peer, number) for number, peer in enumerate(senders)))
    await live.until(
        lambda: all(sorted(each.bodies) == wanted(each) for each in followers), ANSWER_S
    )
    for task in tasks:
        assert not task.done()
        task.cancel()


async def test_one_failed_answer_does_not_keep_the_others_waiting(
    make_live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live()
    await live.peer.send("T")
    peers = [live.another() for _ in range(4)]
    tasks = [
        asyncio.create_task(peer.call(11, pull_fields(live, "T", 1, 0, "*"), timeout_s=ANSWER_S))
        for peer in peers
    ]
    await live.until(lambda: len(live.broker.parts.hold) == 4)
    fail_at = iter([True, False, False, False])
    get_message = live.broker.parts.store.get_message

    def fails_once(*arguments: Any, **more: Any) -> Any:
        if next(fail_at):
            raise ValueError("the store is unwell")
        return get_message(*arguments, **more)

    monkeypatch.setattr(live.broker.parts.store, "get_message", fails_once)
    await live.peer.send("T", b"2")
    answers = await asyncio.wait_for(asyncio.gather(*tasks), ANSWER_S)
    assert sorted(answer.code for answer in answers) == [0, 0, 0, 1]


# ---------------------------------------------------------------------------------------------- pop


def pop_fields(live: Any, **changes: object) -> dict[str, str]:
    fields: dict[str, object] = {
        "consumerGroup": "G", "topic": "T", "queueId": -1, "maxMsgNums": 32,
        "invisibleTime": 60_000, "pollTime": WAIT_MS, "bornTime": live.clock(), "initMode": 0,
        "expType": "TAG", "exp": "*", **changes,
    }  # fmt: skip
    return {name: str(value) for name, value in fields.items()}


async def pop(live: Any, peer: Any, code: int = 200050, **changes: object) -> RemotingCommand:
    response: RemotingCommand = await peer.call(
        code, pop_fields(live, **changes), timeout_s=ANSWER_S
    )
    return response


async def drained(live: Any) -> None:
    """A topic with a group that has popped everything."""
    await live.peer.send("T")
    assert (await pop(live, live.peer)).code == 0


async def test_a_pop_of_a_closed_connection_is_not_woken_in_place_of_others(
    make_live: Any,
) -> None:
    live = await make_live()
    await drained(live)
    polling = live.broker.services.pop.polling
    gone, stays = live.another(), live.another()
    lost = asyncio.create_task(pop(live, gone))
    await live.until(lambda: len(polling) == 1)
    kept = asyncio.create_task(pop(live, stays))
    await live.until(lambda: len(polling) == 2)
    await gone.client.aclose()
    with pytest.raises(RemotingError):
        await lost
    await live.until(lambda: len(polling) == 1)
    await live.peer.send("T", b"2")
    assert (await asyncio.wait_for(kept, ANSWER_S)).code == 0


async def test_a_connection_that_closes_as_it_is_woken_hands_the_message_on(
    make_live: Any,
) -> None:
    live = await make_live()
    await drained(live)
    polling = live.broker.services.pop.polling
    gone, stays = live.another(), live.another()
    lost = asyncio.create_task(pop(live, gone))
    await live.until(lambda: len(polling) == 1)
    kept = asyncio.create_task(pop(live, stays))
    await live.until(lambda: len(polling) == 2)
    # The connection is lost between the arrival and the answer, and nobody has said so yet.
    first = next(iter(polling._waiting["T", "G", -1]))
    first.channel._closing = True
    await live.peer.send("T", b"2")
    assert (await asyncio.wait_for(kept, ANSWER_S)).code == 0
    first.channel._closing = False
    first.channel.abort()
    with pytest.raises(RemotingError):
        await lost


async def test_who_is_only_notified_does_not_take_the_place_of_a_pop(make_live: Any) -> None:
    live = await make_live()
    await drained(live)
    service = live.broker.services.pop
    notified = asyncio.create_task(pop(live, live.another(), 200054))
    await live.until(lambda: len(service.notifying) == 1)
    popped = asyncio.create_task(pop(live, live.another()))
    await live.until(lambda: len(service.polling) == 1)
    await live.peer.send("T", b"2")
    assert (await asyncio.wait_for(popped, ANSWER_S)).code == 0
    # The message is gone, so there is nothing to be told of yet.
    await live.until(lambda: len(service.notifying) == 1)
    await live.peer.send("T", b"3")
    assert (await asyncio.wait_for(notified, ANSWER_S)).fields["hasMsg"] == "true"


@pytest.mark.parametrize("seed", range(3))
async def test_nobody_who_pops_waits_beside_a_message(make_live: Any, seed: int) -> None:
    """Consumers come and go; each message is handed out once, and soon."""
    live = await make_live(enablePopBufferMerge="true" if seed % 2 else "false")
    rng = random.Random(seed)
    await drained(live)
    bodies: list[bytes] = []

    async def consume() -> None:
        peer = live.another()
        try:
            for _ in range(rng.randrange(1, 30)):
                queue_id = rng.choice((-1, -1, 0))
                response = await pop(live, peer, maxMsgNums=rng.randrange(1, 5), queueId=queue_id)
                if response.code == 0:
                    bodies.extend(bodies_of(response))
        finally:
            await peer.client.aclose()

    async def come_and_go() -> None:
        while True:
            await consume()

    # One stays and takes whatever is there.
    async def stay() -> None:
        peer = live.another()
        while True:
            response = await pop(live, peer)
            if response.code == 0:
                bodies.extend(bodies_of(response))

    tasks = [asyncio.create_task(come_and_go()) for _ in range(4)]
    tasks.append(asyncio.create_task(stay()))
    for n in range(300):
        await live.peer.send("T", b"%d" % n, rng.randrange(3))
        if rng.random() < 0.5:
            await asyncio.sleep(rng.random() * 0.01)
    wanted = sorted(b"%d" % n for n in range(300))
    await live.until(lambda: len(bodies) >= len(wanted), ANSWER_S)
    assert sorted(bodies) == wanted
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_very_many_who_wait_are_answered_in_turns(
    make_live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer takes a millisecond of the loop's time."""
    live = await make_live()
    await live.peer.send("T", b"first", queue_id=0)
    dispatching = live.broker.services.dispatching
    loop = asyncio.get_running_loop()
    real, passed = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real() + passed[0])
    turns: list[int] = []
    pull_again = dispatching._pull_again

    def answer(held: Any) -> None:
        passed[0] += 0.001
        if not turns:
            loop.call_soon(turns.append, -1)  # when the loop turns
        pull_again(held)
        answered.append(len(turns))

    answered: list[int] = []
    monkeypatch.setattr(dispatching, "_pull_again", answer)
    waiting = [
        asyncio.ensure_future(live.peer.call(11, pull_fields(live, "T", 1, 0, "*")))
        for _ in range(40)
    ]
    await live.until(lambda: len(live.broker.parts.hold) == 40)
    await live.peer.send("T", b"second", queue_id=0)
    async with asyncio.timeout(ANSWER_S):
        responses = await asyncio.gather(*waiting)
    assert [bodies_of(each) for each in responses] == [[b"second"]] * 40
    assert 0 < answered.count(0) <= 10  # in the first turn
    assert len(answered) == 40
