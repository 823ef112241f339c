"""`oberth store …` as a user calls it: data on stdout, talk on stderr, exit codes.

Commands run in this process through the same `main` that the console script calls.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oberth.cli.main import main

Pristine = Callable[[str], Any]
Run = Callable[..., tuple[int, str, str]]

SIZE_KEYS = (
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "mapperFileSizeBatchConsumeQueue",
    "maxHashSlotNum",
    "maxIndexNum",
)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line: exit code, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in arguments])
        out, err = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), out, err

    return call


def settings(store: Any) -> list[str]:
    """--set for the sizes, for stores whose files do not tell them all."""
    return [
        word
        for key in SIZE_KEYS
        if key in store.config
        for word in ("--set", f"{key}={store.config[key]}")
    ]


def test_inspect_shows_files_queues_and_positions(run: Run, golden_pristine: Pristine) -> None:
    store = golden_pristine("crash-4.9.7")
    code, out, err = run("store", "inspect", store.root)
    assert (code, err) == (0, "")
    assert "RocketMQ 4.9" in out
    assert "not closed cleanly" in out
    assert "commitlog/00000000000000131072" in out
    code, out, _ = run("store", "inspect", store.root, "--json")
    shown = json.loads(out)
    assert shown["commitLog"]["maxOffset"] == store.facts["commitLog"]["maxOffset"]
    assert shown["sizes"]["maxIndexNum"] == {"value": 300, "from": "files"}
    assert (
        shown["checkpoint"]["logicsMsgTimestamp"]
        == (store.facts["checkpoint"]["logicsMsgTimestamp"])
    )
    assert {(each["topic"], each["queueId"], each["maxOffset"]) for each in shown["queues"]} == {
        (each["topic"], each["queueId"], each["storeMaxOffset"])
        for each in store.facts["queues"]
        if each["units"]
    }


def test_inspect_counts_when_asked(run: Run, golden_pristine: Pristine) -> None:
    store = golden_pristine("basic-5.5.0")
    code, out, _ = run("store", "inspect", store.root, "--count")
    assert code == 0
    assert "missing" in out
    _, out, _ = run("store", "inspect", store.root, "--count", "--json")
    stored = {m["commitLogOffset"]: m for m in store.facts["messages"]}
    bytes_of = {
        (each["topic"], each["queueId"]): each["bytes"] for each in json.loads(out)["queues"]
    }
    for queue in store.facts["queues"]:
        if queue["units"]:
            expected = sum(size for _, offset, size, *_ in queue["units"] if offset in stored)
            assert bytes_of[queue["topic"], queue["queueId"]] == expected


def test_inspect_says_what_was_given(run: Run, golden_pristine: Pristine, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=broker-a\nmaxIndexNum=300\nstorePathRootDir=/somewhere/else\n")
    _, out, _ = run("store", "inspect", golden_pristine("crash-4.9.7").root, "-c", conf, "--json")
    assert json.loads(out)["sizes"]["maxIndexNum"] == {"value": 300, "from": "given"}


def test_dump_prints_one_json_object_a_line(run: Run, golden_pristine: Pristine) -> None:
    store = golden_pristine("basic-5.5.0")
    code, out, err = run("store", "dump", store.root)
    assert (code, err) == (0, "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [each["commitLogOffset"] for each in lines] == [
        each["commitLogOffset"] for each in store.facts["messages"]
    ]
    body = base64.b64decode(lines[5]["body"])
    assert hashlib.sha256(body).hexdigest() == lines[5]["bodySha256"]


def test_dump_of_a_queue_from_an_offset(run: Run, golden_pristine: Pristine) -> None:
    store = golden_pristine("basic-5.5.0")
    queue = store.facts["queues"][3]
    arguments = ["--topic", queue["topic"], "--queue", queue["queueId"], "--from", 4, "--limit", 3]
    _, out, _ = run("store", "dump", store.root, *arguments)
    shown = [json.loads(line) for line in out.splitlines()]
    assert [each["queueOffset"] for each in shown] == [4, 5, 6]
    assert [each["commitLogOffset"] for each in shown] == [unit[1] for unit in queue["units"][4:7]]


def test_dump_from_the_middle_of_a_record(run: Run, golden_pristine: Pristine) -> None:
    store = golden_pristine("basic-5.5.0")
    offsets = [each["commitLogOffset"] for each in store.facts["messages"]]
    _, out, _ = run("store", "dump", store.root, "--from", offsets[9] + 1, "--limit", 1)
    assert json.loads(out)["commitLogOffset"] == offsets[10]


def test_dump_names_damage_on_stderr(run: Run, golden_store: Pristine) -> None:
    store = golden_store("basic-5.5.0")
    path = store.root / "commitlog" / "00000000000000000000"
    data = bytearray(path.read_bytes())
    data[4] ^= 1
    path.write_bytes(data)
    code, out, err = run("store", "dump", store.root)
    assert code == 0
    assert len(out.splitlines()) == len(store.facts["messages"]) - 1
    assert err.startswith("CommitLog 0 to 192: no record")


@pytest.mark.parametrize(
    ("name", "code"),
    [("basic-4.9.7", 0), ("flipped-bit-5.5.0", 1), ("torn-tail-4.9.7", 1), ("pop-5.5.0", 0)],
)
def test_verify_tells_by_its_exit_code(
    run: Run, golden_pristine: Pristine, name: str, code: int
) -> None:
    root = golden_pristine(name).root
    found, out, err = run("store", "verify", root)
    assert found == code
    assert bool(out) == bool(code)
    assert err.splitlines()[-1].startswith("clean: " if code == 0 else "1 findings: ")
    found, out, _ = run("store", "verify", root, "--json")
    report = json.loads(out)
    assert (found, report["clean"]) == (code, code == 0)
    for finding in report["findings"]:
        assert {"kind", "file", "position", "found", "expected", "severity"} <= finding.keys()


def test_verify_of_no_store_is_unusable(run: Run, tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    code, out, err = run("store", "verify", tmp_path)
    assert (code, out) == (2, "")
    assert "not a store directory" in err
    assert "hint: " in err
    code, out, _ = run("store", "verify", tmp_path, "--json")
    assert (code, json.loads(out)["clean"]) == (2, False)


def test_query_by_key_id_and_time(run: Run, golden_pristine: Pristine) -> None:
    store = golden_pristine("basic-5.5.0")
    root = store.root
    listed = {each["commitLogOffset"]: each for each in store.facts["messages"]}
    for query in store.facts["indexQueries"][:12]:
        arguments: list[object] = ["--topic", query["topic"], "--key", query["key"]]
        arguments += ["--max", query["maxNum"], "--begin", query["begin"], "--end", query["end"]]
        if query.get("indexType"):
            arguments += ["--index-type", query["indexType"]]
        code, out, _ = run("store", "query", root, *arguments, "--collisions")
        shown = [json.loads(line)["commitLogOffset"] for line in out.splitlines()]
        assert shown == query["queryMessage"]
        assert code == (0 if shown else 1)
    message = listed[192]
    for wanted in (message["msgId"], message["properties"]["UNIQ_KEY"]):
        code, out, _ = run("store", "query", root, "--id", wanted)
        assert (code, json.loads(out)["commitLogOffset"]) == (0, 192)
    _, out, _ = run(
        "store", "query", root, "--topic", message["topic"], "--queue", message["queueId"],
        "--time", message["storeTimestamp"],
    )  # fmt: skip
    answer = json.loads(out)
    assert (answer["offset"], answer["message"]["commitLogOffset"]) == (0, 192)


def test_query_checks_its_options(run: Run, golden_pristine: Pristine) -> None:
    root = golden_pristine("basic-5.5.0").root
    assert run("store", "query", root)[0] == 2
    assert run("store", "query", root, "--key", "k")[0] == 2
    assert run("store", "query", root, "--key", "k", "--id", "x", "--topic", "t")[0] == 2
    assert run("store", "query", root, "--topic", "t", "--time", "yesterday")[0] == 2
    code, out, err = run("store", "query", root, "--topic", "TopicAlpha", "--key", "no such key")
    assert (code, out, err) == (1, "", "nothing found\n")
    code, _, err = run("store", "query", root, "--topic", "none", "--time", "0")
    assert code == 2
    assert "'none' has no ConsumeQueue" in err


def test_rebuild_into_another_directory(
    run: Run, golden_pristine: Pristine, tmp_path: Path
) -> None:
    store = golden_pristine("batch-5.5.0")
    into = tmp_path / "made"
    code, out, _ = run("store", "rebuild", store.root, "--into", into, "--json")
    report = json.loads(out)
    assert (code, report["records"]) == (0, len(store.facts["messages"]))
    for path in (store.root / "consumequeue").rglob("0*"):
        if path.is_file():
            made = into / path.relative_to(store.root)
            assert made.read_bytes() == path.read_bytes()
    code, _, err = run("store", "rebuild", store.root, "--into", into)
    assert code == 2
    assert "not empty" in err


def test_recover_leaves_what_rocketmq_leaves(
    run: Run, golden_name: str, golden_store: Pristine
) -> None:
    if golden_name.startswith("defaults"):
        pytest.skip("segments of 1 GiB")
    store = golden_store(golden_name)
    before = {p: p.read_bytes() for p in (store.root / "consumequeue").rglob("0*") if p.is_file()}
    code, out, err = run("store", "recover", store.root, "--json", *settings(store))
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["abnormal"] == store.facts["abortFile"]
    for file in store.facts["filesAfterLoad"]:
        data = (store.root / file["path"]).read_bytes()
        same = hashlib.sha256(data).hexdigest() == file["sha256"]
        # RocketMQ leaves units behind a queue's end, which a later start could take for messages.
        old = before.get(store.root / file["path"], b"")
        is_left = hashlib.sha256(old).hexdigest() == file["sha256"]
        same |= is_left and old.startswith(data.rstrip(b"\0"))
        # RocketMQ 5.5.0 begins to rebuild where its checkpoint says; here nothing is left out.
        fuller = golden_name == "crash-noqueue-5.5.0" and file["path"].startswith("consumequeue")
        assert same or fuller, file["path"]
    damaged = golden_name.startswith("flipped-bit")
    assert run("store", "verify", store.root)[0] == (1 if damaged else 0)
    assert not (store.root / "abort").exists()


def test_salvage_into_a_new_store(run: Run, golden_store: Pristine, tmp_path: Path) -> None:
    store = golden_store("flipped-bit-4.9.7")
    into = tmp_path / "saved"
    code, out, _ = run("store", "salvage", store.root, "--into", into)
    assert code == 0
    assert "its body fails the checksum" in out
    assert "flip-A/3/2 at 46524" in out
    assert run("store", "verify", into)[0] == 0
    code, out, _ = run("store", "dump", into)
    assert len(out.splitlines()) == len(store.facts["messages"]) - 1
    code, out, _ = run("store", "dump", into, "--fillers")
    assert len(out.splitlines()) == len(store.facts["messages"])
    code, out, _ = run("store", "salvage", store.root, "--into", tmp_path / "more", "--json")
    assert json.loads(out)["lostRecords"] == 1
    for wrong in (into, store.root / "inside"):
        assert run("store", "salvage", store.root, "--into", wrong)[0] == 2


def test_errors_have_a_hint_and_no_traceback(run: Run, golden_pristine: Pristine) -> None:
    root = golden_pristine("basic-5.5.0").root
    code, out, err = run("store", "inspect", root, "--set", "maxIndexNumber=5")
    assert (code, out) == (2, "")
    assert err.startswith("error: maxIndexNumber: no such option")
    assert "hint: " in err
    assert run("store", "inspect", root, "--set", "nonsense")[0] == 2
    assert run("store", "inspect", root, "-c", root / "none.conf")[0] == 2


def test_the_version_needs_no_store() -> None:
    script = (
        "import sys; sys.argv = ['oberth', '--version']\n"
        "from oberth.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n"
        "    print([m for m in sys.modules if m.startswith(('oberth.store', 'numba', 'numpy'))])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert done.stdout.startswith("oberth ")
