"""KV configuration: what is kept of it is limited."""

from __future__ import annotations

import pytest

from oberth.errors import OptionError
from oberth.namesrv import kv_config
from oberth.namesrv.kv_config import KvConfigTable


def test_the_whole_table_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_config, "TABLE_SIZE_MAX", 100)
    table = KvConfigTable()
    for number in range(9):
        table.put(f"n{number % 2}", f"k{number}", "x" * 9)
    with pytest.raises(OptionError, match="110 characters, allowed 100"):
        table.put("n", "k9", "x" * 9)
    assert table.namespace("n") is None
    table.put("n0", "k0", "x" * 10)  # in place of another
    table.delete("n0", "k2")
    table.put("n", "k", "x" * 9)
    assert table.get("n", "k") == "x" * 9
