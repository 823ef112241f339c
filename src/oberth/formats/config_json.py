"""JSON as Java's fastjson reads and writes it: config/*.json, and bodies of remoting commands.

`parse_config` takes any document that RocketMQ writes or reads, `format_config` writes one byte for
byte as one of its lines does. Reader and writer have a module each.
"""

from oberth.formats.json_reader import CONFIG_SIZE_MAX, parse_config
from oberth.formats.json_values import DEPTH_MAX, ObjectKey
from oberth.formats.json_writer import (
    Dialect,
    FieldList,
    InlineList,
    Shown,
    config_in_slices,
    encode_config,
    format_config,
    format_double,
)

__all__ = [
    "CONFIG_SIZE_MAX",
    "DEPTH_MAX",
    "Dialect",
    "FieldList",
    "InlineList",
    "ObjectKey",
    "Shown",
    "config_in_slices",
    "encode_config",
    "format_config",
    "format_double",
    "parse_config",
]
