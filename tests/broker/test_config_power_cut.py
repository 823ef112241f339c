"""Files of config/ on a disk that loses power, and who may read them."""

from __future__ import annotations

import random
import stat
from pathlib import Path
from typing import Any

import pytest

from oberth.broker.acl.users import SUPER, UserStore
from oberth.broker.config_file import ConfigFile
from oberth.errors import ConfigFormatError
from oberth.remoting.bodies.admin import UserInfo
from oberth.testing.fault_disk import FaultDisk, PowerCut

pytestmark = pytest.mark.crash


def _loaded(path: Path) -> int | None:
    seen: list[Any] = []
    try:
        return seen[0]["n"] if ConfigFile(path).load(seen.append) else None
    except ConfigFormatError:
        return -1


def _write_some(disk: FaultDisk, path: Path, synced: list[int], rng: random.Random | None) -> None:
    """Some writes; without ``rng`` all are waited for, else some, some later, and some never."""
    file = ConfigFile(path, disk)
    for number in range(1, 6):
        kind = 0 if rng is None else rng.randrange(3)
        file.write_document({"n": number, "filler": "x" * 9000}, sync=kind == 0)
        if kind == 1:
            file.sync()
        if kind < 2:
            synced.append(number)


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_power_cut_takes_back_no_write_that_was_waited_for(
    tmp_path: Path, seed: int | None
) -> None:
    def play(disk: FaultDisk, name: str, synced: list[int]) -> None:
        rng = None if seed is None else random.Random(seed)
        _write_some(disk, tmp_path / name / "config" / "x.json", synced, rng)

    probe = FaultDisk()
    play(probe, "probe", [])
    for cut in range(1, probe.events + 1):
        disk = FaultDisk(cut_power_at=cut)
        synced: list[int] = []
        with pytest.raises(PowerCut):
            play(disk, f"cut-{cut}", synced)
        for keep in (0.0, 0.4, 0.8):
            target = tmp_path / f"image-{cut}-{keep}"
            target.mkdir()
            rng = random.Random(cut)
            disk.crash_image(str(target), str(tmp_path / f"cut-{cut}"), rng, keep)
            found = _loaded(target / "config" / "x.json")
            assert found != -1, (cut, keep, disk.log)  # there is none yet, or it is whole
            if seed is None:
                assert (found or 0) >= (synced[-1] if synced else 0), (cut, keep, disk.log)
            elif synced:
                assert found is not None, (cut, keep, disk.log)


def test_a_damaged_file_does_not_replace_its_back_up(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    ConfigFile(path).write_document({"n": 1}, sync=True)
    ConfigFile(path).write_document({"n": 2}, sync=True)
    path.write_bytes(b"{")
    file = ConfigFile(path)
    assert file.load(lambda document: None)
    file.write_document({"n": 3})
    assert _loaded(file.back_up) == 1
    assert _loaded(path) == 3


def test_users_are_on_the_disk_or_as_before(tmp_path: Path) -> None:
    def change(disk: FaultDisk | None, root: Path, made: list[str]) -> None:
        users = UserStore(root, disk)
        for name in ("a", "b", "c"):
            users.create_user(UserInfo(username=name, password="p", user_type=SUPER))
            made.append(name)

    probe = FaultDisk()
    change(probe, tmp_path / "probe", [])
    for cut in range(1, probe.events + 1):
        disk, made = FaultDisk(cut_power_at=cut), list[str]()
        with pytest.raises(PowerCut):
            change(disk, tmp_path / f"cut-{cut}", made)
        image = tmp_path / f"image-{cut}"
        image.mkdir()
        disk.crash_image(str(image), str(tmp_path / f"cut-{cut}"), random.Random(cut), 0.5)
        users = UserStore(image)
        users.load()
        assert set(made) <= users.users.keys() <= {*made, "abc"[len(made)]}


@pytest.mark.parametrize("before", [0o666, 0o644, 0o600])
def test_a_private_file_is_for_its_owner_alone(tmp_path: Path, before: int) -> None:
    path = tmp_path / "x.json"
    file = ConfigFile(path, private=True)
    parts = (path, file.back_up, path.with_name("x.json.tmp"))
    for each in parts:
        each.write_bytes(b"{}")
        each.chmod(before)
    for _ in range(2):
        file.write_document({"secret": "s"})
        for each in parts[:2]:
            assert stat.S_IMODE(each.stat().st_mode) == 0o600


def test_a_file_keeps_the_permissions_it_has(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    file = ConfigFile(path)
    file.write_document({"a": 1})
    for mode in (0o640, 0o600):
        path.chmod(mode)
        file.write_document({"a": mode}, sync=True)
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert stat.S_IMODE(file.back_up.stat().st_mode) == mode


class Written:
    """A configuration file on a disk, and what a loss of power would leave of it."""

    def __init__(self, directory: Path) -> None:
        self.disk = FaultDisk()
        self.path = directory / "config" / "x.json"
        self.file = ConfigFile(self.path, self.disk)
        self._images = directory / "images"

    def left(self, name: str = "x.json") -> bytes | None:
        """Of what was synced alone."""
        target = self._images / f"{self.disk.events}-{name}"
        target.mkdir(parents=True)
        self.disk.crash_image(str(target), str(self.path.parents[1]), random.Random(1), 0.0)
        copy = target / "config" / name
        return copy.read_bytes() if copy.exists() else None


def test_a_write_that_is_waited_for_is_on_the_disk(tmp_path: Path) -> None:
    written = Written(tmp_path)
    for data in (b"one", b"another"):
        written.file.write(data, sync=True)
        assert written.left() == data


def test_a_write_is_on_the_disk_when_it_is_synced(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.file.write(b"one")
    assert written.left() == b"one", "a first version"
    written.file.write(b"another")
    assert written.left() in (None, b"one")
    written.file.sync()
    assert written.left() == b"another"


def test_what_becomes_the_back_up_is_on_the_disk_first(tmp_path: Path) -> None:
    written = Written(tmp_path)
    for data in (b"none", b"one"):
        written.file.write(data)
    written.file.write(b"another", sync=True)
    assert written.left() == b"another"
    assert written.left("x.json.bak") == b"one"


def test_what_a_start_reads_is_on_the_disk(tmp_path: Path) -> None:
    """The process before it may have been killed while it waited for the disk."""
    written = Written(tmp_path)
    for data in (b'{"a":1}', b"{}"):
        written.file.write(data)
    assert written.left() != b"{}"
    assert ConfigFile(written.path, written.disk).load(lambda _: None)
    assert written.left() == b"{}"
