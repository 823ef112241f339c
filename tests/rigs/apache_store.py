"""Apache's own store code on a directory: what does it read, and what does it write?

    dump = read_store(directory, "5.5.0", {"mappedFileSizeCommitLog": "131072"})
    dump.messages[0]["topic"], dump.queues[0]["units"]

The directory is opened as a broker would open it, with recovery, so work on a copy: opening changes
files. Field names are those of the golden descriptions in tests/golden.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.rigs import peers

__all__ = ["ApacheDump", "StoredMessage", "put_messages", "read_store"]

_TIMEOUT_S: Final = 120
_HEAP: Final = "512m"


@dataclass(slots=True)
class ApacheDump:
    """What Apache's store read.

    Attributes:
        load: result of load() and the offsets after it.
        messages: every record in log order.
        blanks: positions and size fields of the blanks at the ends of files.
        unreadable: positions where a record did not parse; the scan ends at the first.
        queues: offsets and units ``[queueOffset, commitLogOffset, size, tagsCode, ...]``.
        answers: to the questions, in their order.
    """

    load: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    blanks: list[dict[str, Any]] = field(default_factory=list)
    unreadable: list[dict[str, Any]] = field(default_factory=list)
    queues: list[dict[str, Any]] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message for put_messages."""

    topic: str
    body: bytes
    queue_id: int = 0
    tags: str = ""
    keys: str = ""
    born_timestamp: int = 1_700_000_000_000
    sys_flag: int = 0
    reconsume_times: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)


def _run(
    program: str, version: str, args: Sequence[str], config: Mapping[str, str], text: str
) -> list[dict[str, Any]]:
    lib = peers.jars(version)
    root = peers.checkout() / "tests" / "interop" / "java"
    sources = [
        root / "common" / "Json.java",
        *(root / "store" / "common").glob("*.java"),
        *(root / "store" / f"v{version[0]}").glob("*.java"),
    ]
    classes = peers.compile_java(f"store-{version}", lib, sources)
    command = peers.java_command(
        lib,
        program,
        *args,
        *(f"{key}={value}" for key, value in config.items()),
        classes=classes,
        options=(f"-Xmx{_HEAP}", f"-Duser.home={args[0]}/.."),
    )
    done = subprocess.run(
        command,
        input=text.encode(),
        capture_output=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        tail = done.stderr.decode(errors="replace")[-2000:]
        raise RuntimeError(f"{program} {version} on {args[0]}: code {done.returncode}\n{tail}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]


def read_store(
    directory: Path,
    version: str,
    config: Mapping[str, str] | None = None,
    *,
    start: bool = False,
    questions: Iterable[Sequence[object]] = (),
) -> ApacheDump:
    """Open a store directory with Apache's DefaultMessageStore and read everything.

    Args:
        directory: the store root; changed by being opened.
        version: one of peers.SERVER_VERSIONS.
        config: keys of MessageStoreConfig, ``{root}`` for the directory.
        start: also start its services, so that missing queues and indexes are built.
        questions: ``("key", topic, key, max, begin, end)``, ``("get", topic, queue, offset, max)``
            ``("time", topic, queue, timestamp, boundary)`` or ``("bounds", topic, queue)``.
    """
    text = "".join("\t".join(map(str, question)) + "\n" for question in questions)
    mode = "start" if start else "load"
    dump = ApacheDump()
    kinds = {
        "message": dump.messages,
        "blank": dump.blanks,
        "unreadable": dump.unreadable,
        "queue": dump.queues,
    }
    for line in _run("StoreDump", version, [str(directory), mode], config or {}, text):
        kind = line.pop("kind")
        if kind == "load":
            dump.load = line
        else:
            kinds.get(kind, dump.answers).append(line)
    return dump


def put_messages(
    directory: Path,
    version: str,
    messages: Iterable[StoredMessage],
    config: Mapping[str, str] | None = None,
    *,
    kill: bool = False,
) -> list[dict[str, Any]]:
    """Write messages with Apache's store; gives status and offsets of each put.

    Args:
        directory: the store root, made when missing.
        version: one of peers.SERVER_VERSIONS.
        messages: what to put, one by one.
        config: keys of MessageStoreConfig.
        kill: end without a clean shutdown.
    """
    lines = []
    for m in messages:
        properties = ",".join(f"{key}={value}" for key, value in m.properties.items())
        fields = (m.topic, m.queue_id, m.tags, m.keys, m.born_timestamp, m.sys_flag)
        body = base64.b64encode(m.body).decode()
        lines.append("\t".join(map(str, (*fields, m.reconsume_times, properties, body))) + "\n")
    mode = "kill" if kill else "stop"
    return _run("StorePut", version, [str(directory), mode], config or {}, "".join(lines))
