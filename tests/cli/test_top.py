"""`oberth top`: rates from two samples, what the screen has room for, and a live cluster."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from oberth.cli.main import oberth
from oberth.cli.top_view import Sample, lines, view
from oberth.client.blocking import Admin

READY = re.compile(r"ready: name server (\S+), broker (\S+), store (\S+), in ([0-9.]+) s")
BROKER = ("broker-a", 0, "127.0.0.1:1")


def sample(at_s: float, end: int, offset: int, **runtime: str) -> Sample:
    return Sample(
        at_s,
        brokers={BROKER: runtime},
        ends={("broker-a", "T", 0): end, ("broker-a", "T", 1): 5},
        offsets={("T", "G"): {("broker-a", 0): offset}, ("Gone", "G"): {("broker-a", 0): 1}},
        members={"G": 2},
        producers={"P": 3},
    )


def test_rates_are_what_has_grown() -> None:
    shown = view(sample(10.0, 100, 40), sample(12.0, 160, 50))
    assert shown["topics"] == [{"topic": "T", "inPerS": 30.0, "messages": 165}]
    groups = {(each["group"], each["topic"]): each for each in shown["groups"]}
    assert groups["G", "T"] == {
        "group": "G", "topic": "T", "lag": 110, "outPerS": 5.0, "members": 2,
    }  # fmt: skip
    assert groups["G", "Gone"]["lag"] is None, "its topic has no queue that was asked for"


def test_a_first_sample_and_one_that_begins_anew_have_no_wrong_rates() -> None:
    first = view(None, sample(10.0, 100, 40))
    assert first["topics"][0]["inPerS"] is None
    assert first["groups"][0]["outPerS"] is None
    again = view(sample(10.0, 100, 40), sample(12.0, 3, 1))
    assert again["topics"][0]["inPerS"] == 0
    assert view(sample(10.0, 1, 1), sample(10.0, 2, 1))["topics"][0]["inPerS"] is None


def test_the_slowest_stage_is_first() -> None:
    shown = view(
        None,
        sample(
            1.0, 1, 1,
            sendThreadPoolQueueSize="3", sendThreadPoolQueueHeadWaitTimeMills="20",
            pullThreadPoolQueueSize="9", pullThreadPoolQueueHeadWaitTimeMills="700",
            pageCacheLockTimeMills="1700000000000", queryThreadPoolQueueSize="nonsense",
        ),
    )  # fmt: skip
    assert [(each["stage"], each["longestWaitMs"]) for each in shown["stages"]] == [
        ("pull", 700),
        ("send", 20),
        ("put", 0),
    ]


def test_brokers_of_both_kinds_are_read() -> None:
    runtime = {
        "brokerVersionDesc": "V5_3_3", "putTps": "12.5 3.0 1.0", "getTransferedTps": "1.0 2.0 3.0",
        "commitLogDiskRatio": "0.42", "commitLogMaxOffset": "300", "commitLogMinOffset": "100",
        "dispatchBehindBytes": "7", "remainHowManyDataToFlush": "0 B",
    }  # fmt: skip
    (broker,) = view(None, sample(1.0, 1, 1, **runtime))["brokers"]
    assert (broker["inPerS"], broker["outPerS"], broker["diskUsed"]) == (12.5, 1.0, 0.42)
    assert (broker["logBytes"], broker["dispatchBehindBytes"]) == (200, 7)
    (silent,) = view(None, sample(1.0, 1, 1))["brokers"]
    assert silent["inPerS"] is None


@given(st.integers(2, 60), st.integers(1, 200), st.text(max_size=40), st.integers(0, 30))
def test_a_screen_is_never_larger_than_the_terminal(
    rows: int, width: int, name: str, count: int
) -> None:
    now = sample(1.0, 1, 1)
    now.failures = {name: name}
    for number in range(count):
        now.ends["b", f"{name}{number}", 0] = number
        now.offsets[f"{name}{number}", name] = {("b", 0): 0}
    made = lines(view(None, now), rows=rows, width=width, title="t")
    assert len(made) <= rows
    assert all(len(line) <= width and line.isprintable() for line in made)


def test_on_a_narrow_screen_names_give_way_to_figures() -> None:
    now = sample(1.0, 1, 1)
    now.ends["b", "orders-of-the-whole-world", 0] = 4321
    now.offsets["orders-of-the-whole-world", "the-shop-that-reads-them"] = {("b", 0): 21}
    made = lines(view(None, now), rows=30, width=40, title="t")
    at = next(number for number, line in enumerate(made) if line.startswith("GROUP"))
    assert made[at].split() == ["GROUP", "TOPIC", "LAG", "OUT/S", "MEMBERS"]
    assert made[at + 1].split() == ["the-sho…", "orders-…", "4300", "-", "0"]
    wide = lines(view(None, now), rows=30, width=100, title="t")
    assert wide[at + 1].split()[:2] == ["the-shop-that-reads-them", "orders-of-the-whole-world"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a broker with a topic, a group and a lag."""
    store = tmp_path_factory.mktemp("top") / "store"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "oberth", "up", "--store", str(store)),
            *("--port", "0", "--namesrv-port", "0", "--set", "brokerName=broker-a"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    found = READY.fullmatch(process.stdout.readline().strip())
    assert found is not None
    namesrv = found[1]
    runner = CliRunner()
    for words in (
        ["topic", "create", "T", "--queues", "1"],
        ["message", "send", "T", "hello"],
        ["group", "create", "G"],
        ["group", "reset", "G", "T", "--earliest"],
    ):
        assert runner.invoke(oberth, [*words, "-n", namesrv]).exit_code == 0
    yield namesrv
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    process.stdout.close()


def run(namesrv: str, *words: str) -> str:
    result = CliRunner().invoke(oberth, ["top", "-n", namesrv, "--interval", "0.5", *words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_once_as_json(cluster: str) -> None:
    load = subprocess.Popen(
        [sys.executable, "-m", "oberth", "message", "send", "T", "-n", cluster],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert load.stdin is not None
    with load:
        load.stdin.write(b"x\n" * 2000)  # fits into the pipe; takes longer than the look below
        load.stdin.flush()
        shown: Any = json.loads(run(cluster, "--once", "--json", "--interval", "0.5"))
        load.terminate()
    (broker,) = shown["brokers"]
    assert broker["broker"] == "broker-a"
    assert 0 < broker["diskUsed"] <= 1
    topics = {each["topic"]: each for each in shown["topics"]}
    assert topics["T"]["messages"] >= 1
    assert topics["T"]["inPerS"] >= 0
    assert not topics.keys() & {"SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a"}
    (group,) = [each for each in shown["groups"] if each["topic"] == "T"]
    assert (group["group"], group["members"]) == ("G", 0)
    assert group["lag"] >= 1
    assert shown["failures"] == {}


def test_once_as_text(cluster: str) -> None:
    text = run(cluster, "--once")
    assert "BROKER" in text
    assert "nobody waits" in text
    assert re.search(r"^G +T +[0-9]+ +[0-9.]+ +0$", text, re.MULTILINE)
    assert "\x1b" not in text
    few = run(cluster, "--once", "--topics", "0")
    assert "topics are not looked at" in few


def test_groups_of_the_brokers_own_are_shown_when_asked_for(cluster: str) -> None:
    with Admin(namesrv_addr=cluster) as admin:
        (queue,) = admin.topic_queues("T")
        admin.update_consume_offset("CID_RMQ_SYS_ours", queue, 0)
    assert "CID_RMQ_SYS_ours" not in run(cluster, "--once")
    assert "CID_RMQ_SYS_ours" in run(cluster, "--once", "--system")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_screen_ends_with_the_terminal_as_it_was(cluster: str, ending: signal.Signals) -> None:
    pty = pytest.importorskip("pty")
    import os

    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "oberth", "top", "-n", cluster, "--interval", "0.2"],
        stdin=child,
        stdout=child,
        stderr=child,
    )
    os.close(child)
    seen = b""
    try:
        while seen.count(b"BROKER") < 2:
            seen += os.read(parent, 65536)
        process.send_signal(ending)
        while b"\x1b[?1049l" not in seen:
            seen += os.read(parent, 65536)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
        os.close(parent)
    assert seen.index(b"\x1b[?1049h") < seen.index(b"BROKER")
