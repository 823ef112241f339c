"""No acknowledged message is lost when the broker dies in the official client's traffic.

It is killed with SIGKILL, or its disk loses power first (`tests.rigs.loop_disk`).

It sends sync, async, in batches, in order, delayed by level and by timer, and in transactions; it
consumes by push, by POP, with retries, into the dead-letter queue and broadcasting. Afterwards
everything acknowledged has arrived, nothing has that was not sent, and queues have kept their
order. Some kills hit a broker that is just starting. A failure names its seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from tests.rigs import peers
from tests.rigs.clusters import ApacheCluster, cluster_for, oberth_in_place_of
from tests.rigs.interop import client_classes
from tests.rigs.loop_disk import LoopDisk

from oberth.client.admin import Admin
from oberth.errors import PeerUnavailableError

pytestmark = [pytest.mark.interop, pytest.mark.crash, pytest.mark.slow]

ROUNDS = int(os.environ.get("OBERTH_KILL_ROUNDS", "4"))
SETTLE_TIMEOUT_S = 500
CLIENT_RETRIES = 2  # the official client's default
KINDS = (
    *("sync", "async", "batch", "order", "delay", "timer", "transaction"),
    *("retry", "dlq", "broadcast", "pop"),
)
GO_KIND_COUNT = 6
PAUSE_MS = 20  # between the sends of a kind: two processors do for all of them


def ledger_command(
    client: str, namesrv_addr: str, directory: Path, wanted: Collection[str] = KINDS
) -> tuple[list[str], int]:
    """The program that sends and consumes, and how many kinds of traffic it has."""
    if client == "go":
        program = peers.compile_go("gosuite", peers.checkout() / "tests" / "interop" / "go")
        return [str(program), "-namesrv", namesrv_addr, "-ledger"], GO_KIND_COUNT
    kinds = [kind for kind in wanted if kind != "pop" or client.startswith("5")]
    lib, classes = client_classes(client)
    command = peers.java_command(
        lib,
        "LedgerRun",
        f"namesrv={namesrv_addr}",
        f"only={','.join(kinds)}",
        f"pause={PAUSE_MS}",
        classes=classes,
        options=("-Xmx384m", f"-Duser.home={directory}", "-Drocketmq.client.logLevel=ERROR"),
    )
    return command, len(kinds)


@pytest.mark.parametrize(
    ("flush", "brokers", "client"),
    [
        ("ASYNC_FLUSH", 1, "5.5.0"),
        ("SYNC_FLUSH", 1, "5.5.0"),
        ("ASYNC_FLUSH", 3, "5.5.0"),
        ("ASYNC_FLUSH", 1, "4.9.8"),
        ("SYNC_FLUSH", 1, "go"),
    ],
)
def test_acknowledged_survives_kills(
    tmp_path: Path, broker: str, flush: str, brokers: int, client: str
) -> None:
    """With three brokers, producers and consumers go on with those that are left."""
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    try:
        # Checks are a second apart here, a producer's heartbeats thirty: what nobody could be asked
        # about must not be counted, or it were given up before a producer is known again.
        conf = {"flushDiskType": flush}
        if broker != "oberth":
            conf["transactionCheckMax"] = "1000"  # RocketMQ counts it
        cluster = cluster_for(broker, tmp_path, conf, brokers=brokers)
        command, kind_count = ledger_command(client, cluster.namesrv_addr, tmp_path)
    except PeerUnavailableError as why:
        pytest.skip(str(why))

    def round_of_kills() -> None:
        node = rng.choice(cluster.brokers)
        node.kill()
        if brokers > 1:
            time.sleep(rng.uniform(1, 3))  # for a while the others carry on alone
        if rng.random() < 0.5:
            node.launch()
            time.sleep(rng.uniform(0.1, 2))  # recovering, or just serving again
            node.kill()
        node.start()

    with cluster:
        if not cluster.brokers:
            pytest.skip("a cluster that is not ours to kill")
        output = ledger_output(command, tmp_path, rng, round_of_kills)
    judge(output, kind_count, f"kill_{broker}_{flush} x {brokers}_{client}", seed)


@pytest.mark.parametrize("client", ["5.5.0", "go"])
def test_acknowledged_survives_a_store_that_changes_hands(tmp_path: Path, client: str) -> None:
    """Apache's broker and ours serve one store in turns, each until it is killed or stopped."""
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    try:
        cluster = ApacheCluster("5.5.0", tmp_path, {"transactionCheckMax": "1000"})
        command, kind_count = ledger_command(client, cluster.namesrv_addr, tmp_path)
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    (theirs,) = cluster.brokers
    ours = oberth_in_place_of(theirs)
    serving, resting = (ours, theirs) if rng.random() < 0.5 else (theirs, ours)
    cluster.brokers[:] = [serving]

    def change_hands() -> None:
        nonlocal serving, resting
        if rng.random() < 0.7:
            serving.kill()
        else:
            serving.stop()
        serving, resting = resting, serving
        cluster.brokers[:] = [serving]
        serving.start()

    with cluster:
        output = ledger_output(command, tmp_path, rng, change_hands)
    judge(output, kind_count, f"hands_{client}", seed)


@pytest.mark.parametrize("client", ["5.5.0", "go"])
def test_acknowledged_survives_losses_of_power(tmp_path: Path, client: str) -> None:
    """With SYNC_FLUSH: nothing that was acknowledged is missing from its consumer.

    A topic, a group and a setting that were made before a cut are there after it, too.
    """
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    with contextlib.ExitStack() as stack:
        try:
            disk = stack.enter_context(LoopDisk(tmp_path / "power"))
            conf = {"flushDiskType": "SYNC_FLUSH", "mappedFileSizeCommitLog": str(16 << 20)}
            cluster = cluster_for("oberth", disk.path, conf)
            os.sync()  # the files that a person wrote before the first start
            command, kind_count = ledger_command(client, cluster.namesrv_addr, tmp_path)
        except PeerUnavailableError as why:
            pytest.skip(str(why))
        (node,) = cluster.brokers

        def lose_power() -> None:
            with node.frozen():
                disk.cut()
            time.sleep(rng.choice([0.0, rng.uniform(0, 1)]))  # it goes on without a disk
            node.kill()
            disk.restore()

        rounds = iter(range(1, ROUNDS + 1))

        def round_of_cuts() -> None:
            number = next(rounds)
            asyncio.run(change_tables(cluster.namesrv_addr, node.address, number))
            lose_power()
            if rng.random() < 0.5:
                node.launch()
                time.sleep(rng.uniform(0.1, 2))
                lose_power()
            node.start()
            asyncio.run(check_tables(cluster.namesrv_addr, node.address, number))

        stack.enter_context(cluster)
        output = ledger_output(command, tmp_path, rng, round_of_cuts)
    judge(output, kind_count, f"power_oberth_SYNC_FLUSH_{client}", seed)


async def change_tables(namesrv_addr: str, address: str, number: int) -> None:
    """A topic, a group and a setting of a number."""
    async with Admin(namesrv_addr=namesrv_addr, timeout_ms=20_000) as admin:
        await admin.create_topic(f"Cut{number}", queue_nums=number)
        await admin.create_group(f"cut{number}")
        await admin.update_broker_config(address, {"fileReservedTime": str(100 + number)})


async def check_tables(namesrv_addr: str, address: str, number: int) -> None:
    """They are there, and so are those before."""
    async with Admin(namesrv_addr=namesrv_addr, timeout_ms=20_000) as admin:
        for each in range(1, number + 1):
            assert (await admin.topic_config(address, f"Cut{each}")).read_queue_nums == each
            assert (await admin.group_config(address, f"cut{each}")).group_name == f"cut{each}"
        assert (await admin.broker_config(address))["fileReservedTime"] == str(100 + number)


def test_brokers_that_restart_one_by_one_fail_no_send(tmp_path: Path) -> None:
    """As for a new version: the client's own tries go to those that are there meanwhile."""
    # Not those in order, whose queue is on one broker.
    kinds = ("sync", "async", "batch", "delay", "timer", "transaction")
    try:
        cluster = cluster_for("oberth", tmp_path, brokers=3)
        command, kind_count = ledger_command("5.5.0", cluster.namesrv_addr, tmp_path, kinds)
        command.append(f"retries={CLIENT_RETRIES}")
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    nodes = iter(cluster.brokers * ROUNDS)

    def restart() -> None:
        node = next(nodes)
        node.stop()
        node.start()

    with cluster:
        output = ledger_output(command, tmp_path, random.Random(1), restart)
    results = judge(output, kind_count, "restart_oberth", 1)
    assert {result["counts"]["failed sends"] for result in results} == {0}, results


def ledger_output(
    command: list[str], directory: Path, rng: random.Random, trouble: Callable[[], None]
) -> str:
    """What the program says in the end, after some rounds of trouble in its traffic."""
    with (directory / "ledger.log").open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert any(line.startswith('{"ready"') for line in process.stdout), "it did not start"
        for _ in range(ROUNDS):
            time.sleep(rng.uniform(2, 6))  # the point in the traffic is what is random
            trouble()
        time.sleep(3)
        process.stdin.write("stop\n")
        process.stdin.flush()
        output, _ = process.communicate(timeout=SETTLE_TIMEOUT_S)
        return output
    finally:
        process.kill()
        process.wait()


def judge(output: str, kind_count: int, name: str, seed: int) -> list[dict[str, Any]]:
    """Every kind of traffic has acknowledged messages, and none is missing or invented."""
    results = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(results) == kind_count, output
    wanted = os.environ.get("OBERTH_INTEROP_RESULTS")
    if wanted:
        lines = "".join(json.dumps(result) + "\n" for result in results)
        Path(wanted, f"{name}.jsonl").write_text(lines)
    for result in results:
        assert result["counts"]["acknowledged"] > 0, result
    bad = [result for result in results if not result["ok"]]
    assert not bad, f"seed {seed}: " + json.dumps(bad, indent=1)
    return results
