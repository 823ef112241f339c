"""The archive of classes of Spark's JVMs in `make test`: one that does not fit is silent."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"


@pytest.mark.spark
@pytest.mark.parametrize("content", [None, b"of another Java" * 1000])
def test_a_jvm_passes_an_archive_over_that_does_not_fit(
    tmp_path: Path, content: bytes | None
) -> None:
    pytest.importorskip("pyspark")
    from oberth.spark.runtime import find_java

    archive = tmp_path / "classes.jsa"
    if content is not None:
        archive.write_bytes(content)
    (options,) = re.findall(
        r'^WITH_CLASSES := SPARK_SUBMIT_OPTS="(.*)"$', MAKEFILE.read_text("utf-8"), re.MULTILINE
    )
    options = options.replace("$(abspath $(CLASSES))", str(archive))
    java = find_java().home / "bin" / "java"
    done = subprocess.run(
        [java, *options.split(), "--version"], capture_output=True, text=True, check=True
    )
    assert re.match(r"\w+ [0-9]+", done.stdout)  # the version comes first
    assert done.stderr == ""
    assert "cds" not in done.stdout
