"""Directories of a Parquet table's partitions: ``name=value``, as Hive has them.

    value                             directory                          files say the whole value
    null                              name=__HIVE_DEFAULT_PARTITION__
    up to 200 characters, quoted      name=VALUE
    longer                            name=BEGINNING-DIGEST              yes
    "", or called like null           name=-DIGEST, name=VALUE-DIGEST    yes

Names are cut between characters: engines refuse a whole table for half of one. They read "" and
what is called like null as null, however it is quoted. A file says the value in its metadata, not
in a column, so that all files of a table have the same columns:

    oberth.partition    {"name": "value"} of those columns whose value the directory does not say

Anybody may send a value that looks like another one's BEGINNING-DIGEST: files of one directory have
the same values if they say the same, not because they lie together.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from itertools import accumulate, takewhile
from typing import Any, Final
from urllib.parse import quote, unquote, unquote_to_bytes

NULL_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
PARTITION: Final = b"oberth.partition"
"""The name in a file's metadata."""
QUOTED_MAX: Final = 200
"""Characters of a quoted value in a directory's name."""
_CUT_TO: Final = 150
_CUT_ANYWHERE: Final = re.compile(rf"(.{{{_CUT_TO}}})(-[0-9a-f]{{16}})")
"""A long value as exports had it before they cut between characters."""


def directory_of(name: str, value: str | None) -> str:
    """The directory of a partition column's value."""
    if value is None:
        return f"{name}={NULL_VALUE}"
    text = quote(value, safe="")
    if _says(text):
        return f"{name}={text}"
    sizes = accumulate(len(quote(char, safe="")) for char in value)
    kept = sum(1 for _ in takewhile(lambda size: size <= _CUT_TO, sizes))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{name}={quote(value[:kept], safe='')}-{digest}"


def _says(text: str) -> bool:
    """Whether a directory that is called like a quoted value says that value to all readers."""
    return text not in ("", NULL_VALUE) and len(text) <= QUOTED_MAX


def partition_metadata(partition: Iterable[tuple[str, str | None]]) -> dict[bytes, bytes]:
    """What a file says of its partition beside its directories; nothing where they say it all."""
    whole = {
        name: value for name, value in partition
        if value is not None and not _says(quote(value, safe=""))
    }  # fmt: skip
    return {PARTITION: json.dumps(whole, ensure_ascii=False).encode()} if whole else {}


def values_of(below: str) -> dict[str, Any]:
    """The partition that the directories of a path say, as text; see `whole_values`."""
    found = [each.partition("=") for each in below.split("/")[:-1]]
    return {
        name: None if value == NULL_VALUE else unquote(value)
        for name, equals, value in found if equals
    }  # fmt: skip


def whole_values(said: Mapping[str, Any], metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    """A file's partition.

    Args:
        said: what its directories say.
        metadata: the file's.
    """
    whole = json.loads((metadata or {}).get(PARTITION, b"{}"))
    return {name: whole.get(name, value) for name, value in said.items()}


def cut_between_characters(directory: str) -> str:
    """What a directory is called now: another name if an older export cut it in a character."""
    name, _, value = directory.partition("=")
    found = _CUT_ANYWHERE.fullmatch(value)
    if found is None:
        return directory
    beginning = re.sub(r"%[0-9A-F]?$", "", found[1])
    whole = unquote_to_bytes(beginning).decode("utf-8", "ignore")
    return f"{name}={quote(whole, safe='')}{found[2]}"
