"""``python -m oberth`` and the command ``oberth``: the command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line; Ctrl-C while it is still being loaded ends it without a traceback."""
    try:
        from oberth.cli.main import main as run  # noqa: PLC0415 - it takes the time that is meant

        run()
    except KeyboardInterrupt:
        sys.stderr.write("aborted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
