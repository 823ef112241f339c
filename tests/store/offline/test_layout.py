"""What a directory is: sizes from the files alone, foreign files, wrong sizes, no permission."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oberth.errors import NotFoundError, OptionError, StoreError, StoreLockedError
from oberth.formats.broker_conf import Line, MessageStoreConfig
from oberth.formats.delay_level import DEFAULT_DELAY_LEVELS, parse_delay_levels
from oberth.formats.message import SCHEDULE_TOPIC
from oberth.store.message_store import MessageStore
from oberth.store.offline.findings import FindingKind, Severity
from oberth.store.offline.layout import common_size, discover, parse_broker_conf
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rebuild import rebuild
from oberth.store.offline.salvage import salvage
from oberth.store.offline.segments import Segment
from oberth.store.offline.verify import verify

Pristine = Callable[[str], Any]


def test_sizes_are_those_the_store_was_made_with(
    golden_name: str, golden_pristine: Pristine
) -> None:
    store = golden_pristine(golden_name)
    layout = discover(store.root)
    made_with = {
        "mappedFileSizeCommitLog": ("mapped_file_size_commit_log", True),
        "mappedFileSizeConsumeQueue": ("mapped_file_size_consume_queue", bool(layout.queues)),
        "mappedFileSizeConsumeQueueExt": (
            "mapped_file_size_consume_queue_ext", bool(layout.ext_queues),
        ),
        "mapperFileSizeBatchConsumeQueue": (
            "mapped_file_size_batch_consume_queue", bool(layout.batch_queues),
        ),
        "maxHashSlotNum": ("max_hash_slot_num", bool(layout.index_files)),
        "maxIndexNum": ("max_index_num", bool(layout.index_files)),
    }  # fmt: skip
    for key, (name, can_be_told) in made_with.items():
        if key in store.config and can_be_told:
            assert getattr(layout.config, name) == int(store.config[key]), key
    assert layout.line is (Line.V4_9 if store.rocketmq_version.startswith("4") else Line.V5)
    assert layout.findings == ()
    assert layout.abort == store.facts["abortFile"]


def test_delay_levels_are_read_off_the_schedule_queues(golden_pristine: Pristine) -> None:
    with StoreReader(golden_pristine("delay-after-5.5.0").root) as reader:
        assert reader.delays_ms == (0, 40_000, 42_000, 44_000, 3_600_000)


def test_delays_that_cannot_be_are_none(golden_store: Pristine, tmp_path: Path) -> None:
    """A store time that is damaged is not taken for one: the store opens, and so does its copy."""
    store = golden_store("delay-after-5.5.0")
    with StoreReader(store.root) as reader:
        delayed = {m.commit_log_offset for m in reader.messages() if m.topic == SCHEDULE_TOPIC}
        assert reader.log.segments[0].start == 0
    [path] = store.segments("commitlog").values()
    with path.open("r+b") as file:
        for offset in delayed:
            file.seek(offset + 56)  # the store time of a record with short addresses
            file.write((1000).to_bytes(8, "big"))
    with StoreReader(store.root) as reader:
        assert reader.delays_ms == parse_delay_levels(DEFAULT_DELAY_LEVELS)
        salvage(reader, str(tmp_path / "saved"))
    with StoreReader(tmp_path / "saved") as reader:
        options = reader.engine_config()
    with MessageStore(options) as opened:
        assert opened.max_offset_in_queue(SCHEDULE_TOPIC, 0) > 0


def test_given_options_win_over_the_files(golden_store: Pristine) -> None:
    store = golden_store("basic-5.5.0")
    layout = discover(store.root, {"mappedFileSizeCommitLog": "262144"})
    assert layout.config.mapped_file_size_commit_log == 262_144
    kinds = {finding.kind for finding in layout.findings}
    assert kinds == {FindingKind.FILE_SIZE, FindingKind.FILE_GAP}


def test_root_in_options_stands_for_the_directory(golden_store: Pristine) -> None:
    store = golden_store("multidir-5.5.0")
    layout = discover(store.root, {"storePathCommitLog": "{root}/clog-a,{root}/clog-b"})
    assert [Path(path).name for path in layout.commit_log_paths] == ["clog-a", "clog-b"]
    # And they are found without being told.
    assert discover(store.root).commit_log == layout.commit_log


def test_read_only_directories_count_too(golden_store: Pristine, tmp_path: Path) -> None:
    store = golden_store("basic-5.5.0")
    old = tmp_path / "old"
    old.mkdir()
    first = sorted((store.root / "commitlog").iterdir())[0]
    first.rename(old / first.name)
    with StoreReader(store.root, {"readOnlyCommitLogStorePaths": str(old)}) as reader:
        assert reader.min_offset == 0
        assert reader.layout.commit_log[0].read_only
        assert verify(reader).clean


def test_foreign_files_are_named_and_nothing_else_suffers(golden_store: Pristine) -> None:
    store = golden_store("basic-5.5.0")
    foreign = {
        "commitlog/notes.txt": Severity.DAMAGE,
        "commitlog/00000000000000000000.bak": Severity.DAMAGE,
        "consumequeue/.DS_Store": Severity.NOTE,
        "consumequeue/TopicAlpha/readme": Severity.NOTE,
        "consumequeue/TopicAlpha/0/x": Severity.DAMAGE,
        "index/old": Severity.NOTE,
    }
    for name in foreign:
        (store.root / name).write_bytes(b"not a segment")
    for name in ("folder", f"{1 << 40:020d}"):
        (store.root / "commitlog" / name).mkdir()
    foreign[f"commitlog/{1 << 40:020d}"] = Severity.DAMAGE
    with StoreReader(store.root) as reader:
        report = verify(reader)
        assert {each.file: each.severity for each in report.findings} == foreign
        assert {each.kind for each in report.findings} == {FindingKind.FOREIGN_FILE}
        assert report.records == len(store.facts["messages"])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("commitlog/00000000000000131072", -1),
        ("commitlog/00000000000000131072", 4096),
        ("consumequeue/TopicAlpha/0/00000000000000000000", -7),
    ],
)
def test_a_wrong_size_is_named(golden_store: Pristine, name: str, change: int) -> None:
    store = golden_store("basic-5.5.0")
    size = (store.root / name).stat().st_size
    os.truncate(store.root / name, size + change)
    with StoreReader(store.root) as reader:
        report = verify(reader)
        (finding,) = [each for each in report.damage if each.kind is FindingKind.FILE_SIZE]
        assert (finding.file, finding.found, finding.expected) == (
            name, f"{size + change} bytes", f"{size} bytes",
        )  # fmt: skip
        # What is gone is the blank's rest or unused units: every message is still read.
        assert report.records == len(store.facts["messages"])


def test_an_empty_last_segment_is_a_note(golden_store: Pristine) -> None:
    store = golden_store("basic-5.5.0")
    (store.root / "commitlog" / "00000000000000917504").touch()
    with StoreReader(store.root) as reader:
        report = verify(reader)
        assert report.clean
        (note,) = report.notes
        assert note.kind is FindingKind.FILE_SIZE


def test_an_empty_store_is_empty(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    with StoreReader(tmp_path) as reader:
        assert (reader.min_offset, reader.max_offset) == (0, 0)
        assert list(reader.messages()) == []
        assert verify(reader).clean


def test_what_is_no_store_is_said(golden_pristine: Pristine, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such directory"):
        discover(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(NotFoundError, match="a file, not a store"):
        discover(tmp_path / "file")
    with pytest.raises(NotFoundError, match="not a store directory"):
        discover(tmp_path)
    with pytest.raises(NotFoundError, match="holds segments, not a store"):
        discover(golden_pristine("basic-5.5.0").root / "commitlog")


def test_queues_without_a_log_are_unusable(golden_store: Pristine) -> None:
    store = golden_store("basic-5.5.0")
    shutil.rmtree(store.root / "commitlog")
    with StoreReader(store.root) as reader, pytest.raises(StoreError, match="no segment"):
        verify(reader)


def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match="did you mean mappedFileSizeCommitLog"):
        discover(".", {"mapedFileSizeCommitLog": "1024"})
    with pytest.raises(OptionError, match="not an integer"):
        discover(".", {"mappedFileSizeCommitLog": "1G"})


def test_broker_conf_and_settings(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=a\nstorePathRootDir=/data/x\nmaxIndexNum=400\n")
    assert parse_broker_conf(str(conf), {"maxIndexNum": "500"}) == {
        "brokerName": "a", "maxIndexNum": "500",
    }  # fmt: skip
    with pytest.raises(StoreError, match="cannot be read"):
        parse_broker_conf(str(tmp_path / "none"), {})


def test_names_that_are_none_of_a_store_are_left_alone(golden_store: Pristine) -> None:
    """Numbers that no offset and no queue can have, and directories among files."""
    store = golden_store("basic-5.5.0")
    queues = store.root / "consumequeue" / "TopicAlpha"
    for name in ("01", "2147483648", "9" * 20, "٠", "²"):
        shutil.copytree(queues / "0", queues / name)
    (store.root / "commitlog" / ("9" * 20)).write_bytes(b"x")
    (store.root / "index" / "20261121084341999").mkdir()
    (store.root / "index" / "20261121084342000").symlink_to("20261121084342000")
    with StoreReader(store.root) as reader:
        report = verify(reader)
        assert report.records == len(store.facts["messages"])
        assert {each.key.queue_id for each in reader.layout.queues.values()} == {0, 1, 2, 3}
    found = {each.file: each.severity for each in report.findings}
    assert found == {
        f"commitlog/{'9' * 20}": Severity.DAMAGE,
        "index/20261121084341999": Severity.DAMAGE,
        "index/20261121084342000": Severity.DAMAGE,
        **{
            f"consumequeue/TopicAlpha/{name}": Severity.NOTE
            for name in ("01", "2147483648", "9" * 20, "٠", "²")
        },
    }
    (store.root / "index" / "20261121084342000").unlink()
    entries = {"storePathRootDir": str(store.root), **store.config}
    with MessageStore(MessageStoreConfig.from_properties(entries)) as opened:
        assert opened.queue_ids("TopicAlpha") == [0, 1, 2, 3]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_said(golden_store: Pristine) -> None:
    store = golden_store("basic-5.5.0")
    (store.root / "consumequeue" / "TopicAlpha").chmod(0)
    try:
        kinds = {finding.kind for finding in discover(store.root).findings}
        assert FindingKind.FILE_UNREADABLE in kinds
    finally:
        (store.root / "consumequeue" / "TopicAlpha").chmod(0o755)


def test_one_odd_file_does_not_decide_the_size() -> None:
    sizes = [Segment("a", 0, 1000), Segment("b", 1000, 37), Segment("c", 2000, 1000)]
    assert common_size([sizes]) == 1000
    assert common_size([[Segment("a", 0, 100), Segment("b", 1000, 37)]]) == 1000
    assert common_size([[]]) == 0


def test_queues_in_rocksdb_are_one_note_and_made_from_the_log(golden_store: Pristine) -> None:
    root = golden_store("basic-5.5.0").root
    queues = root / "consumequeue"
    shutil.rmtree(queues)
    queues.mkdir()
    for name in ("000004.log", "000011.sst", "CURRENT", "IDENTITY", "LOCK", "MANIFEST-000005"):
        (queues / name).write_bytes(b"x")
    with StoreReader(root) as reader:
        (note,) = reader.layout.findings
        assert (note.found, note.severity) == ("queues in RocksDB", Severity.NOTE)
        rebuild(reader)
    with StoreReader(root) as reader:
        assert verify(reader).clean


def test_a_segment_that_is_not_whole_segments_from_the_others_is_left_out(
    golden_store: Pristine, tmp_path: Path
) -> None:
    store = golden_store("basic-5.5.0")
    *_, path = store.segments("commitlog").values()
    shutil.copy(path, path.with_name(f"{int(path.name) + 1:020d}"))
    with StoreReader(store.root) as reader:
        [finding] = reader.layout.findings
        assert finding.kind is FindingKind.FOREIGN_FILE
        assert len(list(reader.messages())) == len(store.facts["messages"])
        assert not salvage(reader, str(tmp_path / "saved")).lost


def test_salvage_turns_down_a_size_that_segments_do_not_have(
    golden_store: Pristine, tmp_path: Path
) -> None:
    store = golden_store("basic-5.5.0")
    with (
        StoreReader(store.root, {"mappedFileSizeCommitLog": "262144"}) as reader,
        pytest.raises(StoreError, match=r"00131072: its name is no multiple of the 262144 bytes"),
    ):
        salvage(reader, str(tmp_path / "saved"))


def test_nobody_else_makes_the_store_that_a_salvage_makes(
    golden_pristine: Pristine, tmp_path: Path
) -> None:
    """A broker that is started there too early, or a second salvage."""
    target = tmp_path / "saved"
    refused: list[object] = []

    def meanwhile(_: int) -> None:
        if not refused:
            with pytest.raises(StoreLockedError) as caught:
                MessageStore(MessageStoreConfig(store_path_root_dir=str(target))).load()
            refused.append(caught)
            with pytest.raises(StoreError, match="is not empty"):
                salvage(reader, str(target))

    with StoreReader(golden_pristine("basic-5.5.0").root) as reader:
        report = salvage(reader, str(target), progress=meanwhile)
    assert refused
    with StoreReader(target) as reader:
        assert reader.max_offset > 0
        assert verify(reader).clean
    assert report.records > 0
