"""docs/protocol.md is what its generator makes of the code, and its frames are frames."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from oberth.remoting.code import RequestCode
from oberth.remoting.connection import RemotingConnection
from oberth.remoting.headers.table import HEADERS

ROOT = Path(__file__).resolve().parents[2]


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "generate_protocol", ROOT / "docs" / "generate_protocol.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")


def test_page_is_up_to_date() -> None:
    assert load_generator().generate() == PAGE, "run: python docs/generate_protocol.py"


def test_every_code_is_on_the_page() -> None:
    for code in RequestCode:
        listed = f"| {code.value} | {code.name} |" in PAGE if code in HEADERS else True
        assert listed, code
        assert code.name in PAGE


def test_worked_examples_are_frames() -> None:
    dumps = re.findall(r"^[0-9a-f]{8}  ((?:[0-9a-f]{2} ?)+)", PAGE, re.MULTILINE)
    stream = bytes.fromhex("".join(dumps))
    request, binary, response = RemotingConnection().receive_data(stream)
    assert request.code == binary.code == RequestCode.GET_MAX_OFFSET
    assert request.fields == binary.fields == {"topic": "T", "queueId": "1"}
    assert (response.opaque, response.fields) == (request.opaque, {"offset": "42"})
