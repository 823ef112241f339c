"""What a night job does with a store: verify it, export what is new, say what is in it.

    python examples/spark/nightly.py STORE OUT

Exits with 1 if the store is damaged; what is whole is exported all the same.
"""

from __future__ import annotations

import argparse
import sys

from oberth.spark.pipelines.export.exporter import export
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.spark.pipelines.tasks import OnSpark
from oberth.spark.pipelines.verify import verify
from oberth.spark.runtime import build_session
from oberth.spark.transforms import count_by_tag


def main(argv: list[str] | None = None) -> int:
    """Run the three steps; gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("out")
    parser.add_argument("--master", default="local[*]")
    args = parser.parse_args(argv)
    spark = build_session(args.master, app_name="nightly", quick=True)
    tasks = OnSpark(spark)
    checked = verify(tasks, args.store)
    for finding in checked.findings[:10]:
        print(finding)
    done = export(tasks, args.store, args.out, ExportSettings(), skip_damage=True)
    print(f"{done.rows} new messages in {done.files} files, {len(done.skipped)} ranges skipped")
    count_by_tag(spark, args.store).orderBy("topic", "tags").show()
    return 0 if checked.clean else 1


if __name__ == "__main__":
    sys.exit(main())
