"""What statements of people who are not trusted may do: ask the views, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
import pytest
from click.testing import CliRunner

from oberth.cli.main import oberth
from oberth.errors import OptionError
from oberth.spark.pipelines.only_reads import check_analysed, parse_reads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ALLOWED = (
    "select * from few",
    "with a as (select n % 2 as m from few) select m, count(*) from a group by m having m > 0",
    "select a.n from few a join few b on a.n = b.n where a.n in (select max(n) from few)",
    "select n, row_number() over (partition by n % 2 order by n desc) from few limit 3 offset 1",
    "select * from few union all select id from range(3)",
    "select e from few lateral view explode(array(n, n)) t as e",
    "select * from values (1), (2) as t(n)",
    "select distinct upper(cast(n as string)) from few except select 'x'",
    "from few |> where n > 1 |> select n",
)  # fmt: skip
REFUSED = (
    "insert overwrite directory 'FOLDER/out' using csv select * from few",
    "create table t using parquet location 'FOLDER/out' as select * from few",
    "create temporary view v as select * from few",
    "select * from csv.`/etc/passwd`",
    "select * from text.`file:///etc/passwd`",
    "select transform(n) using 'touch FOLDER/out' from few",
    "select reflect('java.lang.System', 'getProperty', 'user.home')",
    "select java_method('java.lang.System', 'getenv', 'HOME')",
    "select builtin.reflect('java.lang.System', 'getProperty', 'user.home') from few",
    "select n from few where n in (select try_reflect('java.lang.System', 'getProperty', 'x'))",
    "with a as (select reflect('java.lang.System', 'getProperty', 'x') as r) select * from a",
    "select * from identifier('csv.`/etc/passwd`')",
    "execute immediate 'select 1'",
    "set spark.sql.runSQLOnFiles=true",
    "add jar 'FOLDER/out.jar'",
    "create function f as 'java.lang.String'",
    "explain select * from few",
    "show tables",
    "begin select 1; end",
    "cache table few",
)


@pytest.fixture
def few(spark: SparkSession) -> Any:
    before = spark.conf.get("spark.sql.runSQLOnFiles")
    assert before is not None
    spark.createDataFrame([(1,), (2,), (3,)], "n long").createOrReplaceTempView("few")
    yield spark
    spark.conf.set("spark.sql.runSQLOnFiles", before)
    spark.catalog.dropTempView("few")


def asked(session: SparkSession, statement: str) -> None:
    parse_reads(session, statement)
    check_analysed(session.sql(statement))


@pytest.mark.parametrize("statement", ALLOWED)
def test_queries_are_let_through(few: SparkSession, statement: str) -> None:
    asked(few, statement)


@pytest.mark.parametrize("statement", REFUSED)
def test_everything_else_is_refused(few: SparkSession, tmp_path: Path, statement: str) -> None:
    from pyspark.errors import AnalysisException

    statement = statement.replace("FOLDER", str(tmp_path))
    with pytest.raises((OptionError, AnalysisException)):
        asked(few, statement)
    assert list(tmp_path.iterdir()) == []


def test_the_command(
    few: SparkSession, golden_pristine: Callable[[str], Any], tmp_path: Path
) -> None:
    store = ("spark", "sql", "--store", str(golden_pristine("retry-5.5.0").root), "--only-reads")
    path = tmp_path / "rows.parquet"
    words = ("--rows", "2", "--parquet", str(path), "--", "select topic, value from all_messages")
    done = CliRunner().invoke(oberth, [*store, *words])
    assert done.exit_code == 0, done.output
    table = pyarrow.parquet.read_table(path)
    assert (table.num_rows, table.column_names) == (2, ["topic", "value"])
    again = CliRunner().invoke(oberth, [*store, *words])
    assert "exists already" in again.output
    refused = CliRunner().invoke(oberth, [*store, "select * from text.`/etc/passwd`"])
    assert refused.exit_code == 2
    assert "root:" not in refused.output
