"""The flights' store as a table: dispatch, three questions, an export that is killed and resumed.

Everything goes through the `oberth spark` commands, as from a shell.
"""

from __future__ import annotations

import filecmp
import json
import subprocess
import sys
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


def spark_part(root: str, expected: int) -> None:
    """All steps on a store that nobody writes to.

    Args:
        root: the store.
        expected: how many flights it holds.
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
