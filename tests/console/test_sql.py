"""The page for SQL: what may be asked, by whom, and what comes of it."""

from __future__ import annotations

import asyncio
import csv
import io
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from tests.console.conftest import Browser, a_console

from oberth.client.config import ClientConfig
from oberth.client.messages import Message
from oberth.client.producer import Producer
from oberth.console.config import ConsoleConfig, Login
from oberth.console.plots import BARS_MAX, bars
from oberth.console.sql import ROWS_MAX, STATEMENT_MAX, Job, SqlRunner
from oberth.errors import OptionError
from oberth.testing.embedded_broker import EmbeddedBroker

WAITS_FOR_EVER = """
import os, signal, sys
with open(sys.argv[-1], "w") as file:
    file.write(str(os.getpid()))
signal.pause()
"""
WAITS = (sys.executable, "-c", WAITS_FOR_EVER)
FAILS = (sys.executable, "-c", "import sys; sys.exit('error: no such column')")


@pytest.fixture
async def asker(broker: EmbeddedBroker, tmp_path: Path) -> AsyncIterator[Browser]:
    """Of a console that knows a store."""
    async with a_console(broker, stores=(str(tmp_path),)) as browser:
        yield browser


async def ended(job: Job | None) -> Job:
    assert job is not None
    assert job.task is not None
    await asyncio.wait({job.task})
    return job


async def test_without_a_store_there_is_no_box(reader: Browser) -> None:
    assert "No store was named" in await reader.get("/sql")
    assert "no SQL here" in await reader.post("/sql/start", {"statement": "select 1"}, 400)


async def test_a_statement_is_cancelled_with_what_it_started(
    asker: Browser, tmp_path: Path
) -> None:
    runner = asker.console.sql
    runner._command = WAITS
    noted = tmp_path / "pid"
    os.mkfifo(noted)
    await asker.post("/sql/start", {"statement": str(noted)}, 303)
    page = await asker.get("/sql")
    assert "Running for" in page
    assert "Cancel it" in page
    busy = await asker.post("/sql/start", {"statement": "select 2"}, 400)
    assert "one runs at a time" in busy
    pid = int(await asyncio.to_thread(noted.read_text))
    await asker.post("/sql/cancel", {}, 303)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert "Cancelled" in await asker.get("/sql")


async def test_why_a_statement_failed_is_told_to_who_sent_it(asker: Browser) -> None:
    runner = asker.console.sql
    runner._command = FAILS
    await asker.post("/sql/start", {"statement": "select nothing"}, 303)
    (job,) = runner._jobs.values()
    await ended(job)
    assert "no such column" in await asker.get("/sql")
    await asker.get("/sql/result.csv", 404)
    asker.http.cookies.clear()
    assert "select nothing" not in await asker.get("/sql")


async def test_rows_as_table_plot_csv_and_parquet(asker: Browser) -> None:
    runner = asker.console.sql
    runner._command = FAILS
    await asker.post("/sql/start", {"statement": "select"}, 303)
    (job,) = runner._jobs.values()
    await ended(job)
    names = [f"<b>{number}" for number in range(120)]
    table = pa.table({"tag": names, "count": list(range(120)), "raw": [b"\xff"] * 120})
    pyarrow.parquet.write_table(table, job.path)
    job.state = "done"
    page = await asker.get("/sql", page="3")
    assert "&lt;b&gt;119" in page
    assert "<b>119" not in page
    assert 'class="bar"' in page
    assert "Page 3 of 3" in page
    lines = (await asker.get("/sql/result.csv")).splitlines()
    assert (len(lines), lines[0], lines[-1]) == (121, "tag,count,raw", "<b>119,119,ff")
    answer = await asker.http.get("/sql/result.parquet")
    assert pyarrow.parquet.read_table(io.BytesIO(answer.content)) == table


async def test_no_cell_of_csv_is_a_formula(asker: Browser) -> None:
    """Who opens the file in a spreadsheet would run what a producer has written into a message."""
    asker.console.sql._command = FAILS
    await asker.post("/sql/start", {"statement": "select"}, 303)
    (job,) = asker.console.sql._jobs.values()
    await ended(job)
    texts = {
        "=HYPERLINK(0)": "'=HYPERLINK(0)",
        "+1+cmd|' /C calc'!A0": "'+1+cmd|' /C calc'!A0",
        "-1-1": "'-1-1",
        "@SUM(1)": "'@SUM(1)",
        "\t=1": "'\t'=1",
        "\uff1d1": "'\uff1d1",
        "a;=1": "a;'=1",  # where semicolons separate cells
        "-17.5": "-17.5",
        "a=b": "a=b",
        "": "",
    }
    table = pa.table(
        {
            "=name": list(texts),
            "body": [each.encode() for each in texts],
            "number": [-n for n in range(len(texts))],
        }
    )
    pyarrow.parquet.write_table(table, job.path)
    job.state = "done"
    rows = list(csv.reader(io.StringIO(await asker.get("/sql/result.csv"))))
    assert rows[0] == ["'=name", "body", "number"]
    assert rows[1:] == [[each, each, str(-n)] for n, each in enumerate(texts.values())]
    answer = await asker.http.get("/sql/result.parquet")
    assert pyarrow.parquet.read_table(io.BytesIO(answer.content)) == table


async def test_nothing_of_a_browser_becomes_an_option(tmp_path: Path) -> None:
    async with SqlRunner([str(tmp_path)]) as runner:
        job = Job("a", "b", "--conf=spark.x=1", tmp_path / "a", 0.0)
        words = runner._words(job)
        assert words[-2:] == ["--", "--conf=spark.x=1"]
        assert "--only-reads" in words
        assert words[words.index("--rows") + 1] == str(ROWS_MAX)
        for bad in ("", " ", "x" * (STATEMENT_MAX + 1), "select\0"):
            with pytest.raises(OptionError, match="allowed 1 to"):
                runner.start("b", bad, 0.0)


def test_a_store_is_not_for_users_of_brokers() -> None:
    config = ConsoleConfig(
        client=ClientConfig(namesrv_addr="127.0.0.1:1"), login=Login.USERS, stores=("/tmp",)
    )
    with pytest.raises(OptionError, match="not with --login users"):
        config.check()


def test_bars() -> None:
    drawn = bars("n", "tag", [("a", 2.0), ("b", -1.0), ("c", float("nan"))] * 20, 60)
    assert drawn.count('class="bar"') == BARS_MAX
    assert f"the first {BARS_MAX} of 60 rows" in drawn
    assert "nan" not in drawn


@pytest.mark.spark
@pytest.mark.slow
async def test_a_query_over_the_store_of_a_broker(tmp_path: Path) -> None:
    async with (
        EmbeddedBroker(store=tmp_path / "store") as broker,
        a_console(broker, stores=(str(tmp_path / "store"),)) as browser,
    ):
        async with Producer("shop", config=broker.client_config) as producer:
            for number in range(7):
                await producer.send(Message("Orders", b"x", tags="ab"[number % 2]))
        statement = "select tags, count(*) as n from orders group by tags order by tags"
        await browser.post("/sql/start", {"statement": statement}, 303)
        (job,) = browser.console.sql._jobs.values()
        assert (await ended(job)).state == "done", job.text
        assert (await browser.get("/sql/result.csv")).split() == ["tags,n", "a,4", "b,3"]
