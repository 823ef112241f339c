"""Write docs/settings.md: every option of broker and store, from the declarations themselves."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from oberth.broker.broker_config import BrokerConfig
from oberth.controller.controller_config import ControllerConfig
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.options import options_of
from oberth.namesrv.namesrv_config import NamesrvConfig

HEAD = """# Settings

Written by `docs/generate_settings.py`. A setting comes from `broker.conf` (`-c`), from an
environment variable `OBERTH_KEY`, or from `--set KEY=VALUE`; `--set` overrides the variable, and
the variable overrides the file. Names and defaults are Apache's unless the text says otherwise.
Every key below has an effect. A key that Apache knows and that has no effect here is accepted with
a warning, unless it has Apache's default; an unknown key is accepted with a warning, too.
"""

PARTS = (
    ("Broker", BrokerConfig),
    ("Store", MessageStoreConfig),
    ("Name server", NamesrvConfig),
    ("Controller", ControllerConfig),
)


def settings_page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, config in PARTS:
        parts.append(f"\n## {title}\n\n| key | default | what it does, or costs |\n|---|---|---|\n")
        parts += [
            f"| `{each.java_name}` | {_shown(each.default)} | {_cell(each.doc)} |\n"
            for each in options_of(config)
        ]
    return "".join(parts)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Enum):
        return f"`{value.value}`"
    return "" if value in (None, "") else f"`{_cell(str(value))}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    Path(__file__).with_name("settings.md").write_text(settings_page(), "utf-8")
