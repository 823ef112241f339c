"""Makes the stores of mixed lines: brokers of 4.9, 5.x and ours, one after another on one store.

    python tests/golden/make_mixed.py OUT [WORK]

Needs Maven and Java, see `tests.rigs.peers`. Each broker takes messages with unique keys, keys
and tags through our client and is stopped in order; RocketMQ 5.5.0 indexes the tags, 4.9.7 does
not. What 5.x makes beside (RocksDB, an empty timer wheel) is left out. A store made anew differs
in its times.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.rigs.clusters import cluster_for

from oberth.client.blocking import Producer
from oberth.client.messages import Message

STORES = {
    "4-5-4": ("apache-4.9.7", "apache-5.5.0", "apache-4.9.7"),
    "5-4-ours": ("apache-5.5.0", "apache-4.9.7", "oberth"),
    "4-ours-5-4-5": ("apache-4.9.7", "oberth", "apache-5.5.0", "apache-4.9.7", "apache-5.5.0"),
}
SIZES = {
    "mappedFileSizeCommitLog": "32768",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "50",
    "maxIndexNum": "100",
}
# By broker; with about two and three entries a message some changes lie within an index file.
COUNTS = (40, 25, 33, 21, 30)


def make(name: str, kinds: tuple[str, ...], work: Path, out: Path) -> None:
    """Runs the brokers one after another and packs the store."""
    directory = work / name
    first = 0
    for kind, count in zip(kinds, COUNTS, strict=False):
        with cluster_for(kind, directory, SIZES) as cluster:
            with Producer("mixed", namesrv_addr=cluster.namesrv_addr) as producer:
                for number in range(first, first + count):
                    tags = f"tag{number % 3}" if number % 7 else ""
                    message = Message(
                        "Mixed", f"{kind} {number}".encode(), tags=tags, keys=f"k{number} every"
                    )
                    producer.send(message)
            first += count
    store = directory / "broker-a" / "store"
    shutil.rmtree(store / "rocksdbstore", ignore_errors=True)
    (store / "timerwheel").unlink(missing_ok=True)
    with tarfile.open(out / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(store, arcname=name)


def main() -> None:
    """Makes all of them."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    work = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp())
    for name, kinds in STORES.items():
        make(name, kinds, work, out)


if __name__ == "__main__":
    main()
