"""What becomes of a command's streams: closed ones, and pipes whose reader has left."""

from __future__ import annotations

import errno
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oberth.cli.main import oberth
from oberth.cli.output import new_result_file, write_result_file
from oberth.errors import StoreFullError

Golden = Callable[[str], Any]

OBERTH = (sys.executable, "-m", "oberth")


def without_streams(redirections: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command under a shell's redirections, such as ``>&-``."""
    return subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {redirections}', *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def without_a_reader(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command whose stdout is a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        return subprocess.run(
            [*OBERTH, *words], stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=120
        )


@pytest.mark.parametrize(
    "words",
    ["spark stats . --html", "spark audit . . --receipt", "spark sql 'x' --parquet",
     "cluster dump --namesrv 192.0.2.1:1 --into"],
)  # fmt: skip
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, words: str
) -> None:
    """It was found out when all was read."""
    file = tmp_path / "file"
    file.touch()
    for path, why in (
        (tmp_path / "nowhere" / "a", "there is no directory"),
        (file / "a", "there is no directory"),
        (tmp_path, "is a directory"),
    ):
        done = CliRunner().invoke(oberth, [*shlex.split(words), str(path)])
        assert (done.exit_code, done.stdout) == (2, "")
        assert why in done.stderr.replace("\n", " ")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_in_a_directory_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        done = CliRunner().invoke(oberth, ["cluster", "dump", "--into", str(tmp_path / "a")])
        assert done.exit_code == 2
        assert "cannot be written" in done.stderr
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize("command", ["dump", "inspect", "verify"])
def test_a_closed_stream_changes_no_exit_code(
    golden_pristine: Golden, command: str, closed: str
) -> None:
    root = str(golden_pristine("basic-5.5.0").root)
    done = without_streams(closed, *OBERTH, "store", command, root)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\n"
        "from oberth.cli.output import open_closed_streams\n"
        "open_closed_streams()\n"
        "number = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "print('for people')\n"
        "print('an error', file=sys.stderr)\n"
        "sys.exit(number)\n",
        "utf-8",
    )
    store = tmp_path / "store"
    done = without_streams(">&- 2>&- <&-", sys.executable, str(program), str(store))
    assert done.returncode == 3
    assert store.read_bytes() == b""


@pytest.mark.parametrize("words", ["--help", "store dump STORE", "store inspect STORE"])
def test_a_reader_that_leaves_is_no_finding(golden_pristine: Golden, words: str) -> None:
    root = str(golden_pristine("basic-5.5.0").root)
    done = without_a_reader(*words.replace("STORE", root).split())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_findings_that_nobody_reads_are_findings(golden_store: Golden, form: list[str]) -> None:
    root = golden_store("basic-5.5.0").root
    queue = next(each for each in sorted(root.rglob("consumequeue/*/*/*")) if each.is_file())
    with queue.open("r+b") as file:
        file.write(bytes(8) + b"\xff" * 4)
    done = without_a_reader("store", "verify", str(root), *form)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="pipes have names in /dev/fd there")
def test_results_go_into_a_pipe(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        write_result_file(f"/dev/fd/{writing}", "a result\n")
        os.close(writing)
        assert pipe.read() == b"a result\n"
    link = tmp_path / "out"
    link.symlink_to("/dev/stdout")
    words = ("from oberth.cli.output import write_result_file as w", f"w({str(link)!r}, 'one')")
    program = "; ".join((*words, "print(' and two')"))
    into_a_pipe = without_streams("| cat", sys.executable, "-c", program)
    assert (into_a_pipe.stdout, into_a_pipe.stderr) == ("one and two\n", "")
    # What stdout goes to is not replaced: what follows would be lost.
    kept = tmp_path / "kept"
    kept.write_text("zero, ")
    appended = without_streams(f">> {shlex.quote(str(kept))}", sys.executable, "-c", program)
    assert appended.stderr == ""
    assert kept.read_text() == "zero, one and two\n"


def test_a_file_that_keeps_its_place_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "result", tmp_path / "result.tmp"
    path.write_text("a result that is longer than the next")
    other.write_text("of somebody else")
    path.chmod(0o600)
    before = path.stat()
    for number in (errno.EBUSY, errno.EPERM):

        def refuse(source: str, target: str, number: int = number) -> None:
            assert stat.S_IMODE(os.stat(source).st_mode) == 0o600
            raise OSError(number, os.strerror(number), source, None, target)

        monkeypatch.setattr(os, "replace", refuse)
        write_result_file(str(path), f"{number}")
        assert path.read_text() == f"{number}"
        assert path.stat().st_ino == before.st_ino
        assert sorted(tmp_path.iterdir()) == [path, other]
    monkeypatch.undo()
    write_result_file(str(path), "the next")
    assert (path.read_text(), other.read_text()) == ("the next", "of somebody else")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(tmp_path.iterdir()) == [path, other]


def test_the_error_of_a_result_names_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    path = tmp_path / "result"
    with pytest.raises(OSError, match="result") as raised:
        write_result_file(str(path), "a result")
    assert (raised.value.errno, raised.value.filename) == (errno.EIO, str(path))
    assert not list(tmp_path.iterdir())


def _fail_within(path: Path, error: BaseException) -> None:
    with new_result_file(str(path)) as file:
        file.write(b"half")
        raise error


def test_half_a_result_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "result"
    for error, shown in (
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), StoreFullError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ):
        with pytest.raises(shown):
            _fail_within(path, error)
        assert not list(tmp_path.iterdir())
    with new_result_file(str(path)) as file:
        file.write(b"all")
    assert path.read_bytes() == b"all"
