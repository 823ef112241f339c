"""What the pages show is tried: programs compile or run, commands exist, links lead somewhere.

Blocks of the pages in RUN are run as they stand, each as a file of its own.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from oberth.cli.main import oberth

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks" / "README.md",
]
RUN = ("pytest.md", "programs.md")
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^()\s]+)\)")


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of a page that are written in a language."""
    text = page.read_text("utf-8")
    return [body for found, body in _FENCE.findall(text) if found == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_programs_are_python(page: Path) -> None:
    for block in blocks(page, "python"):
        compile(block, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_programs_run_as_they_stand(name: str, tmp_path: Path) -> None:
    programs = blocks(ROOT / "docs" / name, "python")
    assert programs
    tests = []
    for number, program in enumerate(programs):
        path = tmp_path / f"test_block_{number}.py"
        path.write_text(program, "utf-8")
        if "def test_" in program:
            tests.append(path)
            continue
        done = subprocess.run(
            [sys.executable, str(path)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{program}\n{done.stdout}{done.stderr}"
        # What a program prints stands behind it.
        for line in re.findall(r"^# prints: (.*)$", program, re.MULTILINE):
            assert line in done.stdout, f"{line!r} is not in {done.stdout!r}"
    if tests:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, tests)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{len(tests)} passed" in done.stdout


def command_lines(page: Path) -> Iterator[str]:
    """The lines of a page's blocks, fenced or indented, that call `oberth`."""
    for line in page.read_text("utf-8").replace("\\\n", " ").splitlines():
        found = re.match(r"(?:    |\$ )*(oberth [a-z].*)$", line)
        if found:
            yield found[1]


def the_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the first words name, and the words behind it."""
    command: click.Command = oberth
    while isinstance(command, click.Group):
        assert words, "a group alone"
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"no command {words[0]!r}"
        command, words = found, words[1:]
    return command, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_their_options_exist(page: Path) -> None:
    for line in command_lines(page):
        try:
            words = shlex.split(line, comments=True)[1:]
        except ValueError:
            continue  # a sentence, with an apostrophe in it
        end = next((n for n, word in enumerate(words) if word in "|;&><" or word == "&&"), None)
        command, words = the_command(words[:end])
        known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        known |= {"--help", "-h"}
        for word in words:
            option = word.partition("=")[0]
            if option.startswith("--"):
                assert option in known, f"{page.name}: {line!r}: no option {option}"


def anchors(page: Path) -> set[str]:
    """The names under which the headings of a page can be linked to."""
    text = _FENCE.sub("", page.read_text("utf-8"))
    made = set()
    for title in re.findall(r"^#+ +(.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()
        made.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return made


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = _FENCE.sub("", page.read_text("utf-8"))
    for link in _LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link} is not there"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name}: {link}: no such heading"


README = ROOT / "README.md"
SERVERS = {"up"}
LASTING = {"top": ["--once", "--interval", "0.2"]}
"""By command the words that have it end."""


@pytest.fixture
def at_home(tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A directory with a store ./store whose broker runs, and the environment of commands there.

    The topic orders has the message that the program of the README sends.
    """
    command = [sys.executable, "-m", "oberth"]
    words = ["up", "--store", "./store", "--port", "0", "--namesrv-port", "0"]
    words += ["--console-port", "-1", "--set", "grpcServerPort=0"]
    with subprocess.Popen(
        [*command, *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        found = re.match(r"ready: name server ([^,]+),", process.stdout.readline())
        assert found is not None
        try:
            (program, *_) = blocks(README, "python")
            program = program.replace("127.0.0.1:9876", found[1])
            subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=300)
            yield tmp_path, {**os.environ, "NAMESRV_ADDR": found[1]}
        finally:
            process.terminate()


def run_line(line: str, folder: Path, environment: dict[str, str]) -> str:
    """What a line of the README prints."""
    words = shlex.split(line, comments=True)[1:]
    words += LASTING.get(words[0], [])
    done = subprocess.run(
        [sys.executable, "-m", "oberth", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_lines_of_the_readme_work(at_home: tuple[Path, dict[str, str]]) -> None:
    lines = [
        line
        for line in command_lines(README)
        if line.split()[1] not in SERVERS and not line.startswith("oberth spark")
    ]
    assert len(lines) >= 5
    printed = {line: run_line(line, *at_home) for line in lines}
    (query,) = [out for line, out in printed.items() if line.startswith("oberth store query")]
    assert '"keys":"4711"' in query


@pytest.mark.slow
@pytest.mark.spark
def test_lines_of_the_readme_about_spark_work(at_home: tuple[Path, dict[str, str]]) -> None:
    lines = [line for line in command_lines(README) if line.startswith("oberth spark")]
    assert lines
    for line in lines:
        assert run_line(line, *at_home).splitlines()[1].split() == ["paid", "1"]
    folder, environment = at_home
    program = blocks(README, "python")[1].replace("127.0.0.1:9876", environment["NAMESRV_ADDR"])
    done = subprocess.run(
        [sys.executable, "-c", program.replace(".load()", ".load().show()")],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("orders") == 2
