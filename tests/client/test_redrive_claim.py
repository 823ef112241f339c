"""One redrive at a time sends a group's letters; one that was killed keeps others out a minute."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import Final

import pytest

from oberth.client.admin import Admin
from oberth.client.admin.base import Silent
from oberth.client.messages import Message
from oberth.client.producer import Producer
from oberth.client.redrive_claim import HOLDS_S, RedriveClaim
from oberth.errors import MQClientError, RemotingTimeoutError
from oberth.formats import properties as p
from oberth.remoting.code import RequestCode
from oberth.testing.embedded_broker import EmbeddedBroker

LETTERS: Final = "%DLQ%billing"
AT_WORK: Final = "another redrive of the dead letters of billing is at work, says broker"


async def _start(mq: EmbeddedBroker, *words: str) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "oberth", "dlq", "redrive", "billing", "--json", *words]
    return await asyncio.create_subprocess_exec(
        *command, "-n", mq.namesrv_addr, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


async def _redrive(mq: EmbeddedBroker, *words: str) -> tuple[int | None, list[str], str]:
    """The command in a process of its own: exit code, lines of receipts, and what it said."""
    made = await _start(mq, *words)
    out, err = await made.communicate()
    return made.returncode, out.decode().splitlines(), err.decode()


async def test_a_killed_redrive_keeps_the_next_out_for_a_while(mq: EmbeddedBroker) -> None:
    """It has the receipt of one letter, and waits for that of the second, which is stored."""
    count = 4
    async with Producer("p", config=mq.client_config) as producer:
        for number in range(count):
            letter = Message(LETTERS, b"%d" % number, keys=f"k{number}")
            letter.properties[p.DLQ_ORIGIN_TOPIC] = "orders"
            await producer.send(letter)
    code, [told], said = await _redrive(mq, "--limit", "1")
    assert code == 0, said
    assert '"redriven"' in told
    mq.faults.drop_after_store()
    killed = await _start(mq)
    await mq.wait_until(lambda: len(mq.bodies("orders")) == 2)
    killed.send_signal(signal.SIGSTOP)
    code, receipts, said = await _redrive(mq)
    assert (code, receipts) == (1, [])
    assert AT_WORK in said
    killed.kill()
    await killed.communicate()
    assert AT_WORK in (await _redrive(mq))[2]
    mq.advance(seconds=61)
    code, receipts, said = await _redrive(mq)
    assert code == 0, said
    assert sum('"already"' in line for line in receipts) == 2
    assert sorted(mq.bodies("orders")) == [b"%d" % number for number in range(count)]


async def test_two_groups_are_redriven_at_the_same_time(mq: EmbeddedBroker) -> None:
    async with Admin(config=mq.client_config) as admin:
        async with RedriveClaim(admin, [LETTERS]), RedriveClaim(admin, ["%DLQ%reports"]):
            with pytest.raises(MQClientError, match=AT_WORK):
                async with RedriveClaim(admin, ["%DLQ%a", LETTERS]):
                    pass
        async with RedriveClaim(admin, ["%DLQ%a", LETTERS]):  # the refused one kept nothing
            pass


async def test_a_claim_is_renewed_and_lost(mq: EmbeddedBroker) -> None:
    seconds = 0.0
    async with (
        Admin(config=mq.client_config) as admin,
        RedriveClaim(admin, [LETTERS], now=lambda: seconds) as first,
    ):
        mq.advance(seconds=50)
        await first.renew()
        mq.advance(seconds=50)
        with pytest.raises(MQClientError, match=AT_WORK):
            await RedriveClaim(admin, [LETTERS]).__aenter__()
        first.check()
        seconds = HOLDS_S + 1
        with pytest.raises(MQClientError, match=r"the claim .* has ended"):
            first.check()
        await first.renew()
        first.check()
        mq.advance(seconds=61)
        async with RedriveClaim(admin, [LETTERS]):
            await first.renew()
            with pytest.raises(MQClientError, match="nothing more is sent"):
                first.check()


async def test_without_an_answer_there_is_no_claim(mq: EmbeddedBroker) -> None:
    silent: Silent = {}
    async with Admin(config=mq.client_config, timeout_ms=300) as admin:
        mq.faults.drop([RequestCode.LOCK_BATCH_MQ])
        with pytest.raises(RemotingTimeoutError):
            await RedriveClaim(admin, [LETTERS], silent=silent).__aenter__()
        assert len(silent) == 1
