"""Builds ``oberth.kernels._native``; everything else about the package stands in pyproject.toml.

The kernels' layout header is written from the Python tables at build time, so that a position, a
code or a size stands in one place only. The extension uses Python's limited interface (abi3): one
build serves every Python from 3.11 on. It is optional: where it cannot be built, the plain-Python
references do the same work, slower.

The C compiler is the machine's. A machine without one uses that of the package ``ziglang`` where it
is installed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from enum import IntEnum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
SOURCE = HERE / "src" / "oberth" / "kernels" / "native"
HAS_LIMITED_API = not sysconfig.get_config_var("Py_GIL_DISABLED")
LIMITED_API = "0x030B0000"  # Python 3.11

FORMATS = {
    "oberth.formats.message": (
        "BLANK_MAGIC", "CRC_MASK", "FIXED_SIZE_V1", "HOST_V4_SIZE", "HOST_V6_SIZE", "MAGIC_V1",
        "MAGIC_V2", "SCHEDULE_TOPIC", "MAGIC_POSITION", "BODY_CRC_POSITION", "QUEUE_ID_POSITION",
        "FLAG_POSITION", "QUEUE_OFFSET_POSITION", "COMMIT_LOG_OFFSET_POSITION",
        "SYS_FLAG_POSITION", "BORN_TIMESTAMP_POSITION", "BORN_HOST_POSITION", "BODY_POSITION_V4",
        "RECONSUME_TIMES_BEFORE_BODY", "PREPARED_OFFSET_BEFORE_BODY", "BODY_LENGTH_BEFORE_BODY",
    ),
    "oberth.formats.sys_flag": (
        "BORN_HOST_V6", "STORE_HOST_V6", "INNER_BATCH", "TRANSACTION_MASK",
        "TRANSACTION_PREPARED", "TRANSACTION_ROLLBACK",
    ),
    "oberth.formats.property_crc": ("CRC_PROPERTY", "TAIL_SIZE"),
    "oberth.formats.batch_body": ("ITEM_FIXED_SIZE", "ITEM_FLAG_POSITION", "ITEM_BODY_POSITION"),
    "oberth.formats.properties": ("PROPERTIES_SIZE_MAX", "TRANSIENT_PREFIX"),
    "oberth.formats.delay_level": ("UNKNOWN_LEVEL_DELAY_MS",),
    "oberth.formats.consume_queue": ("UNIT_SIZE", "PRE_BLANK_SIZE", "EXT_ADDRESS_MAX"),
    "oberth.formats.batch_consume_queue": ("NOT_COMPACTED",),
    "oberth.formats.index_file": ("HEADER_SIZE", "SLOT_SIZE", "ENTRY_SIZE", "TIME_DIFF_MAX"),
    "oberth.kernels.layout": ("LMQ_PREFIX", "RETRY_PREFIX", "SYSTEM_PREFIX", "LOOK_AHEAD_ROWS"),
}  # fmt: skip


def layout_header() -> str:
    """``layout.h``: what arguments.py and the formats say, as C constants."""
    sys.path.insert(0, str(HERE / "src"))
    values: dict[str, Any] = {}

    def define(name: str, value: Any) -> None:
        if values.setdefault(name, value) != value:
            raise ValueError(f"two tables define {name}: {values[name]} and {value}")

    for module, names in FORMATS.items():
        for name in names:
            define(name, getattr(import_module(module), name))
    define("BATCH_UNIT_SIZE", import_module("oberth.formats.batch_consume_queue").UNIT_SIZE)
    arguments = vars(import_module("oberth.kernels.arguments"))
    for name, value in arguments.items():
        if isinstance(value, type) and issubclass(value, IntEnum) and value is not IntEnum:
            for member in value:
                define(f"{name}_{member.name}", int(member))
        elif name.isupper() and isinstance(value, int):
            define(name, value)
    for column, index in arguments["COLUMN_INDEX"].items():
        define(f"COLUMN_{column}", arguments["SCAN_COLUMNS"] + index)
    for index, column in enumerate(arguments["ENCODE_COLUMNS"]):
        define(f"ENCODE_COLUMN_{column}", arguments["ENCODE_NUMBERS"] + 2 * index)
    lines = ["/* Written by setup.py from the Python tables at build time. */", "#pragma once"]
    for name, value in values.items():
        text = value.encode() if isinstance(value, str) else value
        if isinstance(text, bytes):
            lines.append(f'#define {name} "{text.decode("ascii")}"')
        else:
            lines.append(f"#define {name} (INT64_C({value}))")
    return "\n".join(lines) + "\n"


class BuildNative(build_ext):
    """Writes the layout, then compiles with what there is."""

    def build_extensions(self) -> None:
        """Chooses a compiler and builds."""
        folder = Path(self.build_temp)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "layout.h").write_text(layout_header())
        self.compiler.add_include_dir(str(folder))
        if self.compiler.compiler_type == "unix" and not _has_compiler(self.compiler.compiler_so):
            if find_spec("ziglang"):
                zig = [sys.executable, "-m", "ziglang", "cc"]
                self.compiler.set_executables(
                    compiler=zig, compiler_so=[*zig, "-fPIC"], linker_so=[*zig, "-shared"]
                )
            else:
                self.warn("no C compiler found; the kernels run as plain Python")
        super().build_extensions()


def _has_compiler(command: list[str]) -> bool:
    words = [word for word in command if "=" not in word]
    return bool(words) and shutil.which(words[0]) is not None


native = Extension(
    "oberth.kernels._native",
    sources=[str(path.relative_to(HERE)) for path in sorted(SOURCE.glob("*.c"))],
    depends=[str(path.relative_to(HERE)) for path in sorted(SOURCE.glob("*.h"))],
    include_dirs=[str(SOURCE.relative_to(HERE))],
    define_macros=[("Py_LIMITED_API", LIMITED_API)] if HAS_LIMITED_API else [],
    py_limited_api=HAS_LIMITED_API,
    extra_compile_args=[
        "-std=c11", "-O3", "-fwrapv", "-fno-strict-aliasing", "-fvisibility=hidden", "-g0", "-Wall",
        "-Wextra", *shlex.split(os.environ.get("OBERTH_NATIVE_FLAGS", "")),
    ],
    optional=True,
)  # fmt: skip

setup(
    ext_modules=[native],
    cmdclass={"build_ext": BuildNative},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if HAS_LIMITED_API else {},
)
