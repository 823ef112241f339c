"""Ext units come back by their address, over file ends, reopenings and truncations."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from oberth.formats.consume_queue_ext import BIT_MAP_SIZE_MAX, ConsumeQueueExtUnit, ext_address
from oberth.store.consume_queue_ext import ConsumeQueueExt
from oberth.store.files import OsFileSystem
from oberth.store.tail_stream import FilePool

FILE_SIZE = 100


def open_ext(root: Path, file_size: int = FILE_SIZE) -> ConsumeQueueExt:
    ext = ConsumeQueueExt(FilePool(OsFileSystem()), f"{root}/ext", file_size)
    ext.load()
    return ext


@settings(max_examples=60)
@given(maps=st.lists(st.binary(max_size=76), min_size=1, max_size=40), kept=st.integers(0, 40))
def test_units_come_back(maps: list[bytes], kept: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        ext = open_ext(Path(folder))
        units = [ConsumeQueueExtUnit(n, n * 7, bit_map) for n, bit_map in enumerate(maps)]
        addresses = [ext.put(unit) for unit in units]
        for _ in range(2):
            for unit, address in zip(units, addresses, strict=True):
                assert address is not None
                assert ext.get(address) == unit
            ext.stream.write_out()
            ext.stream.drop_window()
        # After a start the queue's last address tells where they end, and the next goes there.
        last = addresses[min(kept, len(units) - 1)]
        ext.stream.pool.close()
        again = open_ext(Path(folder))
        again.recover(last)
        assert all(start <= again.stream.end for start in again.stream.segment_starts())
        following = addresses[min(kept, len(units) - 1) + 1 :][:1]
        if following:
            assert again.put(units[min(kept, len(units) - 1) + 1]) == following[0]
        again.stream.pool.close()


def test_a_unit_that_fits_no_file_keeps_its_tags_code(tmp_path: Path) -> None:
    ext = open_ext(tmp_path)
    assert ext.put(ConsumeQueueExtUnit(1, 1, bytes(77))) is None
    assert ext.put(ConsumeQueueExtUnit(1, 1, bytes(76))) == ext_address(0)
    assert ext.put(ConsumeQueueExtUnit(1, 1, bytes(BIT_MAP_SIZE_MAX + 1))) is None


def test_expired_files_go(tmp_path: Path) -> None:
    ext = open_ext(tmp_path)
    addresses = [ext.put(ConsumeQueueExtUnit(n, n, bytes(20))) for n in range(10)]
    ext.stream.write_out()
    assert addresses[6] is not None
    ext.truncate_by_min(addresses[6])
    assert ext.stream.first_start == 200
    assert addresses[0] is not None
    assert ext.get(addresses[0]) is None
    assert ext.get(addresses[6]) == ConsumeQueueExtUnit(6, 6, bytes(20))


def test_an_address_behind_the_end_has_no_unit(tmp_path: Path) -> None:
    ext = open_ext(tmp_path)
    assert ext.get(ext_address(0)) is None
    ext.put(ConsumeQueueExtUnit(1, 1, b"abc"))
    assert ext.get(ext_address(23)) is None
    assert ext.get(ext_address(1 << 40)) is None
    ext.recover(ext_address(5000))
    assert ext.stream.end <= ext.stream.files_end + 5000
