"""Every benchmark, one after the other: ``python -m benchmarks [--small] [names ...]``.

Each prints its JSON on stdout; what cannot run here is skipped and says why on stderr.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

#: Modules that are no benchmarks.
_HELPERS = {
    "__init__",
    "__main__",
    "calm",
    "group",
    "kafka",
    "killed_pipelines",
    "our_store",
    "page",
    "report",
    "served",
    "slow_store",
    "stores",
}


def names() -> list[str]:
    """The benchmarks: modules of this folder and of ``spark`` with a ``main(argv)``."""
    here = Path(__file__).parent
    return [
        ".".join(path.relative_to(here).with_suffix("").parts)
        for folder in (here, here / "spark")
        for path in sorted(folder.glob("*.py"))
        if path.stem not in _HELPERS
    ]


def main() -> None:
    """Run them."""
    parser = argparse.ArgumentParser(description="Run benchmarks; each prints JSON.")
    parser.add_argument("--small", action="store_true", help="short runs, for CI")
    parser.add_argument("names", nargs="*", help=f"which: {', '.join(names())}")
    options = parser.parse_args()
    failed = []
    for name in options.names or names():
        module = importlib.import_module(f"benchmarks.{name}")
        sys.stderr.write(f"== {name}\n")
        try:
            module.main(["--small"] if options.small else [])
        except (Exception, SystemExit) as problem:  # noqa: BLE001  the others are still wanted
            if isinstance(problem, SystemExit) and not problem.code:
                continue
            failed.append(name)
            sys.stderr.write(f"{name} failed: {type(problem).__name__}: {problem}\n")
        sys.stdout.flush()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
