"""Every option and column is in docs/spark.md, and its examples run."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from oberth.spark import options, schemas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spark.md").read_text()


@pytest.mark.parametrize("name", sorted({*options.READ_OPTIONS, *options.WRITE_OPTIONS}))
def test_every_option_is_documented(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", [*schemas.ALL_COLUMNS, "delayLevel"])
def test_every_column_is_documented(name: str) -> None:
    assert f"`{name}`" in PAGE


def _example(name: str) -> Any:
    path = ROOT / "examples" / "spark" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.spark
def test_the_first_look_runs(
    spark: SparkSession, golden_pristine: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    _example("first_look").main([str(golden_pristine("client-5.5.0").root), "ClientTopic"])
    assert "ClientTopic" in capsys.readouterr().out


@pytest.mark.spark
def test_the_copy_runs_twice(
    spark: SparkSession, golden_pristine: Callable[[str], Any], tmp_path: Path,
    capsys: pytest.CaptureFixture[str], read_store: Any,
) -> None:  # fmt: skip
    root = golden_pristine("compressed-5.5.0").root
    arguments = [str(root), str(tmp_path / "copy"), str(tmp_path / "checkpoint")]
    for _ in range(2):
        _example("copy_stream").main(arguments)
    source, copy = read_store(root).rows, read_store(tmp_path / "copy").rows
    assert sorted(row["storedBody"] for row in copy) == sorted(row["storedBody"] for row in source)
    assert sorted(row["value"] for row in copy) == sorted(row["value"] for row in source)


@pytest.mark.spark
def test_invoices_of_a_live_topic(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from oberth.client import Message
    from oberth.client.blocking import Producer
    from oberth.testing.blocking import EmbeddedBroker

    with EmbeddedBroker() as mq:
        with Producer("shop", namesrv_addr=mq.namesrv_addr) as producer:
            for number in range(30):
                body = {"id": number, "customer": f"c{number % 4}", "total": number}
                tag = "paid" if number % 3 else "open"
                producer.send(Message("orders", json.dumps(body).encode(), tags=tag))
        _example("live_invoices").main([mq.namesrv_addr, str(tmp_path / "checkpoint")])
        invoices = [json.loads(body) for body in mq.bodies("invoices")]
    assert sorted(each["id"] for each in invoices) == [n for n in range(30) if n % 3]
    assert "20 paid orders read" in capsys.readouterr().out


@pytest.mark.spark
def test_a_night_of_a_store(
    spark: SparkSession, golden_pristine: Callable[[str], Any], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    root = golden_pristine("client-5.5.0").root
    assert _example("nightly").main([str(root), str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "new messages in" in out
    assert "ClientTopic" in out
