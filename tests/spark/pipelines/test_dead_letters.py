"""Dead letters as a table, and on their way again: once, with a receipt for each."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from oberth.cli.main import oberth
from oberth.errors import StoreLockedError
from oberth.formats.sys_flag import COMPRESSED
from oberth.spark.pipelines import dead_letters as pipeline
from oberth.spark.pipelines.dead_letters import dead_letters, redrive
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Golden = Callable[[str], Any]


def run(*arguments: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(oberth, ["spark", *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.spark
def test_dead_letters_are_redriven_once(
    spark: SparkSession, golden_pristine: Golden, tmp_path: Path
) -> None:
    store = golden_pristine("retry-5.5.0")
    listed = [m for m in store.facts["messages"] if m["topic"].startswith("%DLQ%")]
    letters = run("dlq", str(store.root))
    assert [
        (row["originMessageId"], row["originTopic"], row["consumerGroup"], row["timesRetried"])
        for row in letters
    ] == [(m["properties"]["ORIGIN_MESSAGE_ID"], "RetryTopic", "CG_retry", 3) for m in listed]
    into = str(tmp_path / "again")
    chosen = ["redrive", str(store.root), "--into", into, "--where", "tags = 'Tag0'"]
    receipts = run(*chosen)
    wanted = [m for m in listed if m["properties"].get("TAGS") == "Tag0"]
    assert [each["deadLetterId"] for each in receipts] == [m["msgId"] for m in wanted]
    assert {each["status"] for each in receipts} == {"redriven"}
    with StoreReader(into) as reader:
        assert verify(reader).clean
        for receipt, letter in zip(receipts, wanted, strict=True):
            message = reader.by_id(receipt["messageId"])
            assert message.topic == "RetryTopic"
            assert message.properties["REDRIVEN_FROM"] == letter["msgId"]
            assert message.uniq_key == letter["properties"]["UNIQ_KEY"]
            assert message.reconsume_times == 0
            assert "RETRY_TOPIC" not in message.properties
            assert (message.queue_id, message.queue_offset) == (
                receipt["queueId"], receipt["queueOffset"],
            )  # fmt: skip
        count = len(list(reader.messages()))
    assert {each["status"] for each in run(*chosen)} == {"already"}
    with StoreReader(into) as reader:
        assert len(list(reader.messages())) == count == len(wanted)


@pytest.mark.spark
def test_two_redrives_at_once_write_each_letter_once(
    spark: SparkSession,
    growing_store: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second one comes when the first has looked at what is there, and has written nothing."""
    letters_of(growing_store, random.Random(1), 5)
    root, into = str(growing_store.root), str(tmp_path / "again")
    look = pipeline._present
    refused: list[str] = []

    def look_and_be_overtaken(*given: Any) -> Any:
        found = look(*given)
        with pytest.raises(StoreLockedError) as caught:
            redrive(spark, root, into)
        refused.append(str(caught.value))
        return found

    monkeypatch.setattr(pipeline, "_present", look_and_be_overtaken)
    first = redrive(spark, root, into)
    assert refused == [f"{into}: another redrive is writing here"]
    monkeypatch.undo()
    again = redrive(spark, root, into)
    assert {each.status for each in again} == {"already"}
    with StoreReader(into) as reader:
        assert len(list(reader.messages())) == sum(each.status == "redriven" for each in first)
    assert sorted(each.name for each in tmp_path.iterdir() if "oberth-load" in each.name) == []


@pytest.mark.spark
def test_a_letter_that_does_not_decompress_stays(
    spark: SparkSession, growing_store: Any, tmp_path: Path
) -> None:
    origin = {"RETRY_TOPIC": "T"}
    growing_store.append("%DLQ%g", 0, b"no zlib", flags=COMPRESSED, properties=origin)
    growing_store.append("%DLQ%g", 0, b"good", properties=origin)
    into = str(tmp_path / "again")
    receipts = redrive(spark, str(growing_store.root), into)
    assert [each.status for each in receipts] == ["unreadable body", "redriven"]
    with StoreReader(into) as reader:
        assert [message.body for message in reader.messages()] == [b"good"]
    letters = dead_letters(spark, str(growing_store.root)).orderBy("offset").collect()
    assert [letter["bodyError"] is None for letter in letters] == [False, True]


def letters_of(store: Any, rng: random.Random, count: int) -> None:
    """Appends dead letters; some without a unique key, some bodies twice, some to no topic."""
    for _ in range(count):
        made = {"UNIQ_KEY": f"u{rng.getrandbits(40)}"} if rng.random() < 0.7 else {}
        if rng.random() < 0.9:
            made[rng.choice(["RETRY_TOPIC", "DLQ_ORIGIN_TOPIC"])] = rng.choice("AB")
        group, tag = rng.choice("gh"), rng.choice(["x", "y", ""])
        body = b"letter %d" % rng.randrange(1000)
        store.append(f"%DLQ%{group}", rng.randrange(2), body, tags=tag, properties=made)


@pytest.mark.spark
@pytest.mark.parametrize("seed", [11])
def test_choices_that_overlap_write_each_letter_once(
    spark: SparkSession, make_store: Callable[..., Any], tmp_path: Path, seed: int
) -> None:
    """Letters come between calls, and each call picks others; two stores have the same ids."""
    rng = random.Random(seed)
    stores = [make_store(tmp_path / name) for name in ("one", "two")]
    into = str(tmp_path / "again")
    picks: list[dict[str, str]] = [
        {"where": "tags = 'x'"}, {"group": "g"}, {},
    ]  # fmt: skip
    written: dict[str, set[tuple[Any, ...]]] = {"one": set(), "two": set()}
    for pick in picks:
        for name, store in zip(written, stores, strict=True):
            letters_of(store, rng, 5)
            frame = dead_letters(spark, str(store.root), group=pick.get("group", ""))
            chosen = frame.where(pick.get("where", "true")).where("originTopic is not null")
            wanted = {
                (row["originTopic"], row["offsetMsgId"], row["uniqueKey"], bytes(row["value"]))
                for row in chosen.collect()
            }
            receipts = redrive(
                spark, str(store.root), into, group=pick.get("group", ""),
                where=pick.get("where", "true"),
                write_options={"mappedFileSizeCommitLog": "1m"},
            )  # fmt: skip
            told = [each for each in receipts if each.status == "redriven"]
            assert len(told) == len(wanted - written[name]), (name, pick)
            assert sum(each.status == "already" for each in receipts) == len(wanted & written[name])
            written[name] |= wanted
    with StoreReader(into) as reader:
        assert verify(reader).clean
        found = sorted(
            (m.topic, m.properties["REDRIVEN_FROM"], m.uniq_key or "", m.body)
            for m in reader.messages()
        )
    expected = [
        (topic, letter, key or "", body)
        for own in written.values()
        for topic, letter, key, body in own
    ]
    assert found == sorted(expected)
