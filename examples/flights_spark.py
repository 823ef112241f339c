"""The flights' store as a table: dispatch, three questions, an export that is killed and resumed.

It ends with one question over log and lake: a few more flights leave after the export.

Everything goes through the `oberth spark` commands, as from a shell.
"""

from __future__ import annotations

import filecmp
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

QUESTIONS = (
    "select tags as carrier, count(*) as flights from all_messages "
    "where topic like 'flights-%' group by tags order by flights desc limit 3",
    "select dest, count(*) as flights, round(avg(dep_delay), 1) as minutes_late "
    "from flights_JFK group by dest order by flights desc limit 3",
    "select tailnum, count(distinct carrier) as carriers, max(distance) as miles "
    "from flights_EWR where tailnum is not null group by tailnum "
    "order by carriers desc, miles desc, tailnum limit 3",
)


def _spark(*arguments: str, text: str | None = None) -> str:
    command = [sys.executable, "-m", "oberth", "spark", *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def spark_part(root: str, expected: int, write_more: Callable[[], int]) -> None:
    """All steps on a store that nobody writes to, until it is told to.

    Args:
        root: the store.
        expected: how many flights it holds.
        write_more: stores further flights; gives how many.
    """
    store = Path(root)
    dispatched = store.parent / "dispatched"
    _spark("dispatch", root, "--into", str(dispatched))
    files = sorted(p for p in (store / "consumequeue").rglob("*") if p.is_file())
    different = [
        str(path.relative_to(store))
        for path in files
        if not filecmp.cmp(path, dispatched / path.relative_to(store), shallow=False)
    ]
    print(
        f"dispatched on Spark: {len(files)} queue files, {len(different)} differ from the store's"
    )
    if different or not files:
        raise SystemExit(f"they differ: {different}")
    print(_spark("sql", "--store", root, "--expand", "*", text=";\n".join(QUESTIONS) + ";\n"))
    _export_killed_and_resumed(store, expected)
    _log_and_lake(store, expected + write_more())


def _export_killed_and_resumed(store: Path, expected: int) -> None:
    tables = store.parent / "tables"
    arguments = ["export", str(store), "--into", str(tables), "--format", "delta", "--body", "json"]
    command = [sys.executable, "-m", "oberth", "spark", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as export:
        # The first data files are there, and at the most a part of the tables is committed.
        while export.poll() is None and not list(tables.rglob("*.parquet")):
            try:
                export.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
        export.kill()
    files = len(list(tables.rglob("*.parquet")))
    print(f"killed the export to Delta after its first {files} data files, and ran it again")
    report = json.loads(_spark(*arguments, "--json"))
    from deltalake import DeltaTable

    rows = 0
    for log in sorted(tables.rglob("_delta_log")):
        table = DeltaTable(str(log.parent))
        count = table.to_pyarrow_dataset().count_rows()
        rows += count
        print(f"{log.parent.name:<16}{count:>9,} rows in {len(table.file_uris())} files")
    print(f"the second run reported {report.get('rows')} rows; the tables are in {tables}")
    if rows != expected:
        raise SystemExit(f"the tables hold {rows} rows, the store {expected} flights")


LAKE_COLUMNS = "topic,tags,physicalOffset"
_LAKE_QUESTION = (
    "select tags, count(*) as flights from flights group by tags order by flights desc limit 3"
)


def _log_and_lake(store: Path, expected: int) -> None:
    """One question over both, and how long each side takes by itself."""
    from oberth.spark.lake import open_lake, union_frame
    from oberth.spark.runtime import build_session

    tables = str(store.parent / "tables")
    end = open_lake(tables).end
    options = {"path": str(store), "lake": tables}
    spark = build_session("local[*]", app_name="flights", quick=True, quiet=True)
    try:
        both = union_frame(spark, options, LAKE_COLUMNS).where("topic like 'flights-%'")
        both.createOrReplaceTempView("flights")
        both.limit(1).collect()  # Python workers have started
        counts = {}
        conditions = {
            "lake": f"physicalOffset < {end}",
            "log": f"physicalOffset >= {end}",
            "both": "true",
        }
        for name, where in conditions.items():
            start = time.perf_counter()
            counts[name] = both.where(where).count()
            seconds = time.perf_counter() - start
            print(f"log and lake: {counts[name]:>9,} flights of {name:<5} in {seconds:.1f} s")
        for row in spark.sql(_LAKE_QUESTION).collect():
            print(f"              {row.tags}: {row.flights:,} flights")
    finally:
        spark.stop()
    if counts["both"] != expected or counts["lake"] + counts["log"] != expected:
        raise SystemExit(f"log and lake hold {counts}, {expected} flights were stored")
