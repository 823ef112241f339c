"""Whatever happens to wheel and timer log: each message comes, and once, from the timer's queue."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.store.timer.test_timer_message_store import Rig

from oberth.errors import StoreCorruptError
from oberth.formats.timer_log import UNIT_SIZE
from oberth.formats.timer_wheel import SLOT_SIZE, SLOTS
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import rebuild

LOG_SIZE = 1456
DELIVERED, PENDING, RECALLED = 60, 200, 3


def fill(root: Path) -> tuple[int, set[bytes]]:
    """Messages of which some are delivered and some wait, and a few are recalled."""
    rig = Rig(root)
    for n in range(DELIVERED):
        rig.put(b"d%d" % n, TIMER_DELAY_MS=1000)
    rig.run(4000)
    for n in range(PENDING):
        rig.put(b"p%d" % n, TIMER_DELAY_MS=20_000 + n % 4 * 1000)
    for n in range(RECALLED):
        rig.put(b"r%d" % n, TIMER_DELAY_MS=20_000 + n % 4 * 1000, TIMER_DEL_UNIQKEY=f"T+Up{n}")
    rig.run(1000)
    rig.close()
    bodies = {b"d%d" % n for n in range(DELIVERED)}
    bodies |= {b"p%d" % n for n in range(RECALLED, PENDING)}
    return rig.now_ms, bodies


def all_come(root: Path, now_ms: int, bodies: set[bytes], **options: Any) -> None:
    rig = Rig(root, now_ms, **options)
    rig.run(10_000)
    rig.close()
    rig = Rig(root, rig.now_ms, **options)
    rig.run(30_000)
    count = Counter(body for body, _ in rig.delivered())
    for body, stored_ms in rig.delivered():
        assert body.startswith(b"d") or stored_ms >= now_ms + 18_000
    rig.close()
    assert set(count) == bodies
    assert set(count.values()) == {1}


def log_files(root: Path) -> list[Path]:
    return sorted((root / "timerlog").iterdir())


def overwrite(path: Path, at: int, size: int = UNIT_SIZE) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * size)


def no_wheel(root: Path) -> None:
    (root / "timerwheel").unlink()


def no_log(root: Path) -> None:
    shutil.rmtree(root / "timerlog")


def neither(root: Path) -> None:
    no_wheel(root)
    no_log(root)


def no_first_file(root: Path) -> None:
    log_files(root)[0].unlink()


def no_middle_file(root: Path) -> None:
    log_files(root)[3].unlink()


def no_last_file(root: Path) -> None:
    log_files(root)[-1].unlink()


def damaged_wheel(root: Path) -> None:
    path = root / "timerwheel"
    data = path.read_bytes()
    for number in range(SLOTS):
        if any(data[number * SLOT_SIZE : (number + 1) * SLOT_SIZE]):
            overwrite(path, number * SLOT_SIZE, SLOT_SIZE)


def zeroed_wheel(root: Path) -> None:
    path = root / "timerwheel"
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    "harm",
    [no_wheel, no_log, neither, no_first_file, no_middle_file, no_last_file],
)
def test_files_that_are_gone(harm: Callable[[Path], None], tmp_path: Path) -> None:
    now_ms, bodies = fill(tmp_path)
    harm(tmp_path)
    all_come(tmp_path, now_ms, bodies)


@pytest.mark.parametrize("file", [0, 1, 2, 4, -2, -1])
@pytest.mark.parametrize(("unit", "count"), [(0, 1), (3, 1), (9, 4), (2, 20), (27, 1), (0, 28)])
def test_damaged_units(file: int, unit: int, count: int, tmp_path: Path) -> None:
    now_ms, bodies = fill(tmp_path)
    overwrite(log_files(tmp_path)[file], unit * UNIT_SIZE, count * UNIT_SIZE)
    all_come(tmp_path, now_ms, bodies)


def test_damage_in_every_file(tmp_path: Path) -> None:
    now_ms, bodies = fill(tmp_path)
    for path in log_files(tmp_path):
        overwrite(path, 7 * UNIT_SIZE - 5, 100)
    all_come(tmp_path, now_ms, bodies)


def short_wheel(root: Path) -> None:
    (root / "timerwheel").write_bytes(bytes(100))


def short_log(root: Path) -> None:
    path = log_files(root)[1]
    path.write_bytes(path.read_bytes()[:-UNIT_SIZE])


def nothing(_root: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("harm", "log_size", "removed"),
    [
        (short_wheel, LOG_SIZE, ["timerwheel"]),
        (damaged_wheel, LOG_SIZE, ["timerwheel"]),
        (zeroed_wheel, LOG_SIZE, ["timerwheel"]),
        (short_log, LOG_SIZE, ["timerlog", "timerwheel"]),
        (nothing, 2 * LOG_SIZE, ["timerlog", "timerwheel"]),
        (nothing, LOG_SIZE, ["timerwheel"]),
        (neither, LOG_SIZE, []),
    ],
)
def test_a_rebuild_has_the_next_start_make_them_anew(
    harm: Callable[[Path], None], log_size: int, removed: list[str], tmp_path: Path
) -> None:
    now_ms, bodies = fill(tmp_path)
    harm(tmp_path)
    if harm in (short_wheel, short_log) or log_size != LOG_SIZE:
        with pytest.raises(StoreCorruptError, match=f"{removed[0]}.* `oberth store rebuild`"):
            refused(tmp_path, now_ms, log_size)
    sizes = {
        "mappedFileSizeCommitLog": str(1 << 17),
        "mappedFileSizeConsumeQueue": str(20 * 500),
        "mappedFileSizeTimerLog": str(log_size),
        "maxHashSlotNum": "100",
        "maxIndexNum": "400",
    }
    with StoreReader(tmp_path, sizes) as reader:
        assert rebuild(reader).timer_files == removed
    all_come(tmp_path, now_ms, bodies, mapped_file_size_timer_log=log_size)


def refused(root: Path, now_ms: int, log_size: int) -> None:
    """Opens what cannot be opened, and lets go of the store."""
    rig = Rig.__new__(Rig)
    try:
        rig.__init__(root, now_ms, mapped_file_size_timer_log=log_size)  # type: ignore[misc]
    finally:
        rig.store.shutdown()
