"""Every option, column and command's option is in docs/spark.md; what the page names is there.

Examples run; Python in the page compiles, commands in it parse.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import runpy
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

pytest.importorskip("pyspark")

from oberth.cli.spark import spark as spark_commands
from oberth.client.dead_letters import Receipt
from oberth.errors import OptionError
from oberth.spark import given_options, options, schemas, write_options
from oberth.spark.live_sink import RECEIPTS
from oberth.spark.pipelines import dispatch_stream, salvage, stats, verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "spark.md").read_text()


@pytest.mark.parametrize("name", sorted({*options.READ_OPTIONS, *write_options.WRITE_OPTIONS}))
def test_every_option_is_documented(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", [*schemas.ALL_COLUMNS, "delayLevel"])
def test_every_column_is_documented(name: str) -> None:
    assert f"`{name}`" in PAGE


def _ddl(text: str) -> list[str]:
    return [column.strip().partition(" ")[0] for column in text.split(",")]


#: What comes out of pipelines.
FOUND = {
    "findings": _ddl(verify.FINDINGS_DDL),
    "losses": _ddl(salvage.LOSSES_DDL),
    "statistics": stats.TABLES,
    "steps": _ddl(dispatch_stream.SCHEMA),
    "receipts": list(Receipt("", "", "").to_json()),
    "sent": RECEIPTS.names,
}


@pytest.mark.parametrize(
    ("of", "name"), [(of, name) for of, names in FOUND.items() for name in names]
)
def test_every_column_of_a_pipeline_is_documented(of: str, name: str) -> None:
    assert f"`{name}`" in PAGE


def _commands() -> dict[str, click.Command]:
    context = click.Context(spark_commands)
    names = spark_commands.list_commands(context)
    found = {name: spark_commands.get_command(context, name) for name in names}
    return {name: command for name, command in found.items() if command is not None}


COMMANDS = _commands()
OPTIONS = sorted(
    {
        option.opts[-1]
        for command in COMMANDS.values()
        for option in command.params
        if isinstance(option, click.Option)
    }
    # As in every command on a store.
    - {"--config", "--set"}
)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_of_a_command_is_documented(name: str) -> None:
    assert re.search(rf"{name}(?![\w-])", PAGE)


CALLS = [
    line.strip()
    for line in re.sub(r"\\\n +", "", PAGE).splitlines()
    if line.startswith("    oberth spark ")
]


@pytest.mark.parametrize("line", CALLS)
def test_a_command_of_the_page_parses(line: str) -> None:
    words = shlex.split(line, comments=True)
    command = COMMANDS[words[2]]
    context = click.Context(command)
    command.make_parser(context).parse_args(words[3:])


def test_there_are_commands_in_the_page() -> None:
    assert len(CALLS) > 2


def test_python_of_the_page_compiles() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) > 3
    for block in blocks:
        compile(block, "docs/spark.md", "exec")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(oberth\.spark[\w.]*)`", PAGE))))
def test_a_name_of_the_page_exists(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert (
        importlib.util.find_spec(name)
        if _is_module(name)
        else hasattr(importlib.import_module(module), attribute)
    )


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def anchors_of(page: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_of_the_page_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]*)\)", PAGE):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = ROOT / "docs" / (name or "spark.md")
        assert path.exists(), target
        assert not anchor or anchor in anchors_of(path.read_text("utf-8")), target


def test_the_cost_of_terabytes_follows_from_the_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    model = importlib.import_module("benchmarks.spark.cost_model")
    lines = [*model.constants_table(), *model.estimates_table()]
    assert len(lines) > 10
    for line in lines:
        assert line in PAGE


def _example(name: str) -> Any:
    path = ROOT / "examples" / "spark" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.spark
def test_the_ten_minutes_run_as_written(
    spark: SparkSession, growing_store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(12):
        tag = "paid" if number % 3 else "open"
        growing_store.append("orders", number % 4, b"body %d" % number, tags=tag, keys=f"k{number}")
    section = PAGE.partition("## Ten minutes")[2].partition("\n## ")[0]
    blocks = re.findall(r"```(python|sql)\n(.*?)```", section, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["python", "sql", "python", "python"]
    places = {
        "/data/broker-a/store": growing_store.root,
        "/data/new-store": tmp_path / "new-store",
        "/lake/": f"{tmp_path}/lake-",
    }
    known: dict[str, Any] = {
        "frame": spark.createDataFrame([(1, "a"), (2, "b")], "id int, name string")
    }
    spark.catalog.dropTempView("orders")  # the session is everybody's
    for kind, text in blocks:
        for place, here in places.items():
            text = text.replace(place, str(here))
        if kind == "python":
            script = tmp_path / "block.py"
            script.write_text(text)
            known = runpy.run_path(str(script), init_globals=known)
        else:
            rows = [spark.sql(each).collect() for each in text.split(";") if each.strip()]
            assert {row["tags"]: row["count(1)"] for row in rows[-1]} == {"paid": 8, "open": 4}
    assert capsys.readouterr().out.count("body ") == 8
    known["query"].awaitTermination()
    assert spark.read.parquet(f"{tmp_path}/lake-orders").count() == 12
    new = spark.read.format("rocketmq").load(str(tmp_path / "new-store"))
    assert sorted(json.loads(row.value)["name"] for row in new.collect()) == ["a", "b"]


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


@pytest.mark.parametrize("side", ["source", "sink"])
def test_every_line_for_people_from_kafka_is_kept(side: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "coming-from-kafka.md").read_text("utf-8")
    section = page.partition(f"## The {side}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    assert len(rows) >= 8
    tests = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    table = options._READ if side == "source" else write_options._WRITE
    known = {name.lower() for main, more in table.items() for name in (main, *more)}
    for theirs, ours, text, test in ([cell.strip(" `") for cell in row] for row in rows):
        assert text, theirs
        if ours != "–":
            assert ours.lower() in known, ours
            assert f"def {test}(" in tests, test
            continue
        assert not test, theirs
        with pytest.raises(OptionError, match=rf"option .?{theirs}"):
            given_options.Given({theirs: "1"}, table)
