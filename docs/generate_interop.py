"""Write docs/interop.md from the results of runs: ``python -m docs.generate_interop DIR...``.

Each DIR is what OBERTH_INTEROP_RESULTS named for ``make interop``: one file of outcomes for each
broker and client, those through the proxy, the ledgers of the kill tests, and ``mqadmin.json`` of
``python -m tests.rigs.mqadmin --verdicts``.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.rigs import peers
from tests.rigs.interop import Outcome, markdown_table
from tests.rigs.mqadmin import MEANT, REFUSED, reason_of
from tests.rigs.proxies import GRPC_SCENARIOS

HEAD = """# Interoperability, as measured

Written by `docs/generate_interop.py` from runs of `make interop` on {date}; Java clients and tool
from Maven, Go client v2.1.2 from its module proxy, Java 17, Linux. The suites are the same for
every broker (`tests/interop`); they were written against Apache's.

## Official clients

Each scenario is a program with many checks: every acknowledged message is consumed, the order in
each queue, contents, times, answer codes. A **no** in a column of Apache's is a result, too, and
stays as it was found.

"""
PROXY = """
## Through Apache's proxy

The official gRPC clients for Java {java}, Python {python} and Node.js {node} through Apache's proxy
{proxy} in cluster mode, before one or three of our brokers and before Apache's
(`tests/interop/test_proxy_grpc.py`): contents, ids, order of message groups, attempts, times, kinds
of errors.

"""
KILLED = """
## Killed under traffic

The official clients send and consume while brokers get SIGKILL again and again, every other
time once more while they are starting (`tests/interop/test_kill.py`, six rounds, a loaded
machine). The ledger holds when everything acknowledged arrived, nothing did that was not sent,
and queues kept their order; of `dlq`, arrived means in the dead-letter queue, of `broadcast` at
both members. What came twice is work since the last persisted offset: a kill every few seconds
is often sooner than the five seconds between two writes of the offsets, which for POP the
broker alone knows. Delay levels repeat nothing.

| broker, flush | client | traffic | sent | acknowledged | arrived | twice | ledger holds |
|---|---|---|---|---|---|---|---|
"""
KILLED_TAIL = """
Our own client, against both: `tests/client/test_kill.py`; there brokers also come back at another
address.
"""
ADMIN = """
## mqadmin

Every command of mqadmin 5.5.0 with every option, and with names that do not exist, run by the
official tool over equal contents on Apache's cluster and on ours; outputs and messages compared
without times, addresses, ids and rates (`tests/interop/mqadmin.txt`).

| command line | result | why |
|---|---|---|
"""
_WORDS = {
    "equal": "equal",
    "differs": "differs",
    "fails": "refused",
    "both fail": "refused by both, alike",
    "fails otherwise": "refused by both",
    "only ours works": "only ours answers",
    "no such command": "no such command",
}
_ALIKE = ("equal", "both fail", "no such command")


def _killed_run(name: str) -> tuple[str, str, str]:
    """Broker, flush with the number of brokers, and client, of ``BROKER_FLUSH x COUNT_CLIENT``."""
    broker, _, rest = name.partition("_")
    run, _, client = rest.rpartition("_")
    flush, _, count = run.partition(" x ")
    return (
        broker,
        flush if count == "1" else f"{flush}, {count} brokers",
        "Go" if client == "go" else f"Java {client}",
    )


def main() -> None:
    """Write the page."""
    columns: dict[str, list[Outcome]] = {}
    fronted: dict[str, list[Outcome]] = {}
    killed: list[str] = []
    admin: dict[str, str] = {}
    for folder in map(Path, sys.argv[1:]):
        for path in sorted(folder.glob("*.jsonl")):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            kind, _, rest = path.stem.partition("_")
            if kind == "proxy":
                front, _, language = rest.rpartition("_")
                fronted[f"{front.capitalize()}, {language}"] = [Outcome(**line) for line in lines]
            elif kind == "kill":
                for line in lines:
                    c = line["counts"]
                    what = line["scenario"].removeprefix("ledger-")
                    numbers = (c["sent"], c["acknowledged"], c["arrived"], c["duplicates"])
                    cells = " | ".join(f"{number:,}".replace(",", " ") for number in numbers)
                    held = "yes" if line["ok"] else f"**no**: {line['detail']}"
                    broker, flush_and_count, client = _killed_run(rest)
                    killed.append(
                        f"| {broker}, {flush_and_count} | {client} | {what} | {cells} | {held} |\n"
                    )
            else:
                columns[f"{kind.capitalize()}, {rest}"] = [Outcome(**line) for line in lines]
        if (folder / "mqadmin.json").exists():
            admin = json.loads((folder / "mqadmin.json").read_text())
    java = {name: runs for name, runs in columns.items() if not name.endswith("go")}
    go = {name: runs for name, runs in columns.items() if name.endswith("go")}
    date = datetime.now(UTC).date().isoformat()
    page = HEAD.format(date=date) + markdown_table(java) + "\n" + markdown_table(go)
    if fronted:
        page += PROXY.format(
            java=peers.GRPC_JAVA_VERSION,
            python=peers.GRPC_PYTHON_VERSION,
            node=peers.GRPC_NODE_VERSION,
            proxy=peers.PROXY_VERSION,
        ) + markdown_table(fronted, list(GRPC_SCENARIOS))
    if killed:
        page += KILLED + "".join(killed) + KILLED_TAIL
    if admin:
        page += ADMIN
        for label, verdict in admin.items():
            reasons = REFUSED if verdict == "fails" else MEANT
            why = "" if verdict in _ALIKE else reason_of(reasons, label) or ""
            page += f"| {label} | {_WORDS[verdict]} | {why} |\n"
    (Path(__file__).parent / "interop.md").write_text(page)


if __name__ == "__main__":
    main()
