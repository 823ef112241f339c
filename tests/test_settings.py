"""Every key of docs/settings.md does something: a test notices for each when it does not.

`settings_noticed.txt` names that test by the key. What is said there is tried out by

    python tests/test_settings.py [KEY …]

which makes one key after the other deaf (it has its default whatever it is set to), runs its test,
and prints the keys for which that test passes all the same. It takes some minutes.
"""

from __future__ import annotations

import ast
import os
import signal
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from oberth.broker.broker_config import BrokerConfig
from oberth.controller.controller_config import ControllerConfig
from oberth.errors import OptionError
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.options import Option, options_of
from oberth.namesrv.namesrv_config import NamesrvConfig

HERE = Path(__file__).parent
CLASSES = {
    each.__name__: each
    for each in (BrokerConfig, MessageStoreConfig, NamesrvConfig, ControllerConfig)
}
ONE_VALUE = "one-value"
"""In place of a test: every value but the default is refused."""

HANGS_S = 100
"""A test that takes so long with a deaf key waits for what does not happen any more."""


def noticed() -> dict[tuple[str, str], str]:
    """The table: class and key, and the test that notices."""
    found: dict[tuple[str, str], str] = {}
    section = ""
    for line in (HERE / "settings_noticed.txt").read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, test = line.split()
            assert (section, key) not in found, f"{key} stands twice in {section}"
            found[section, key] = test
    return found


def options() -> dict[tuple[str, str], Option]:
    return {
        (name, each.java_name): each for name, kind in CLASSES.items() for each in options_of(kind)
    }


def test_every_key_has_a_test() -> None:
    assert noticed().keys() == options().keys()


def functions_of(path: Path) -> set[str]:
    return {
        each.name
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_the_tests_are_there() -> None:
    known: dict[str, set[str]] = {}
    for key, test in noticed().items():
        if test == ONE_VALUE:
            option = options()[key]
            assert issubclass(option.kind, Enum)
            assert len(option.kind) == 1
            with pytest.raises(OptionError):
                option.parse("another")
            continue
        path, _, name = test.partition("::")
        if path not in known:
            known[path] = functions_of(HERE / path)
        assert name in known[path], f"{key}: {test}"


def is_noticed(section: str, option: Option, test: str) -> bool:
    """Whether a test fails, or hangs, in a process in which a key has no effect."""
    pid = os.fork()
    if pid == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        signal.alarm(HANGS_S)
        deafen(CLASSES[section], option)
        options = ["-q", "-x", "--assert=plain", "-p", "no:cacheprovider", "-m", "not interop"]
        os._exit(pytest.main([*options, str(HERE / test)]))
    _, status = os.waitpid(pid, 0)
    # pytest ends with 1 when tests failed; other codes say that it could not run them.
    return os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 1


def deafen(kind: type, option: Option) -> None:
    """Give a key its default for ever."""

    def ignore(config: Any, value: object) -> None:
        del config, value

    setattr(kind, option.field_name, property(lambda _: option.default, ignore))


def main(keys: list[str]) -> int:
    table, known = noticed(), options()
    deaf = [
        f"{section} {key}: {test}"
        for (section, key), test in table.items()
        if (not keys or key in keys)
        and test != ONE_VALUE
        and not is_noticed(section, known[section, key], test)
    ]
    sys.stdout.write("".join(f"{each}\n" for each in deaf))
    return 1 if deaf else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
