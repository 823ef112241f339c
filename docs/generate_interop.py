"""Write docs/interop.md from the results of runs: ``generate_interop.py DIR...``.

Each DIR is what OBERTH_INTEROP_RESULTS named for ``make interop``: one file of outcomes for each
broker and client, the ledgers of the kill tests, and ``mqadmin.json`` of
``python -m oberth.testing.mqadmin --verdicts``.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from oberth.testing.interop import Outcome, markdown_table
from oberth.testing.mqadmin import MEANT, NOT_OFFERED, REFUSED

HEAD = """# Interoperability, as measured

Written by `docs/generate_interop.py` from runs of `make interop` on {date}; Java clients and tool
from Maven, Go client v2.1.2 from its module proxy, Java 17, Linux. The suites are the same for
every broker (`tests/interop`); they were written against Apache's.

## Official clients

A scenario is a program's worth of checks: what was acknowledged is consumed, order per queue,
contents, times, answer codes. A **no** on Apache's side is kept as it was found.

"""
KILLED = """
## Killed under traffic

The official Java client sends and consumes while the broker gets SIGKILL again and again
(`tests/interop/test_kill.py`). The ledger holds when everything acknowledged arrived, nothing did
that was not sent, and queues kept their order. What came twice is work since the last persisted
offset.

| broker, flush | traffic | sent | acknowledged | arrived | twice | ledger holds |
|---|---|---|---|---|---|---|
"""
ADMIN = """
## mqadmin

Every command of mqadmin 5.5.0, run by the official tool over equal contents on Apache's cluster
and on ours, outputs compared without times, addresses, ids and rates
(`tests/interop/mqadmin.txt`).

| command line | result | why |
|---|---|---|
"""
_WORDS = {
    "equal": "equal",
    "differs": "differs",
    "fails": "not offered",
    "both fail": "refused by both",
    "only ours works": "only ours answers",
    "no such command": "no such command",
}


def main() -> None:
    """Write the page."""
    columns: dict[str, list[Outcome]] = {}
    killed: list[str] = []
    admin: dict[str, str] = {}
    for folder in map(Path, sys.argv[1:]):
        for path in sorted(folder.glob("*.jsonl")):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            kind, _, rest = path.stem.partition("_")
            if kind == "kill":
                for line in lines:
                    c = line["counts"]
                    what = line["scenario"].removeprefix("ledger-")
                    numbers = (c["sent"], c["acknowledged"], c["arrived"], c["duplicates"])
                    cells = " | ".join(f"{number:,}".replace(",", " ") for number in numbers)
                    held = "yes" if line["ok"] else f"**no**: {line['detail']}"
                    run = rest.replace("_", ", ", 1)
                    killed.append(f"| {run} | {what} | {cells} | {held} |\n")
            else:
                columns[f"{kind.capitalize()}, {rest}"] = [Outcome(**line) for line in lines]
        if (folder / "mqadmin.json").exists():
            admin = json.loads((folder / "mqadmin.json").read_text())
    java = {name: runs for name, runs in columns.items() if not name.endswith("go")}
    go = {name: runs for name, runs in columns.items() if name.endswith("go")}
    date = datetime.now(UTC).date().isoformat()
    page = HEAD.format(date=date) + markdown_table(java) + "\n" + markdown_table(go)
    if killed:
        page += KILLED + "".join(killed)
    if admin:
        page += ADMIN
        for label, verdict in admin.items():
            reasons = MEANT if verdict == "differs" else {**NOT_OFFERED, **REFUSED}
            why = reasons.get(label, "") if verdict in {"differs", "fails"} else ""
            page += f"| {label} | {_WORDS[verdict]} | {why} |\n"
    (Path(__file__).parent / "interop.md").write_text(page)


if __name__ == "__main__":
    main()
