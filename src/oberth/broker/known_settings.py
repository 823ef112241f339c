"""What is known of the settings of a running broker, ours or Apache's: defaults, kinds, secrets.

By key as GET_BROKER_CONFIG shows them; Apache's brokers have keys that are not known here.
"""

from __future__ import annotations

import functools
from typing import Final

from oberth.broker.broker_config import BrokerConfig
from oberth.broker.config_changes import is_secret
from oberth.errors import OptionError
from oberth.formats.message_store_config import KEYS_WITHOUT_EFFECT, MessageStoreConfig
from oberth.formats.options import Option, options_of

HIDDEN: Final = "***"


@functools.cache
def known_options() -> dict[str, Option]:
    """Every option of store and broker by its key."""
    return {
        each.java_name: each
        for kind in (MessageStoreConfig, BrokerConfig)
        for each in options_of(kind)
    }


@functools.cache
def known_defaults() -> dict[str, str]:
    """By key the text of the default; "" where that is Java's null."""
    return KEYS_WITHOUT_EFFECT | {
        key: "" if each.default is None else each.format(each.default)
        for key, each in known_options().items()
    }


def is_same_setting(key: str, one: str, other: str) -> bool:
    """Whether two texts mean the same value."""
    option = known_options().get(key)
    if one == other or option is None:
        return one == other
    try:
        return bool(option.parse(one) == option.parse(other))
    except OptionError:
        return False


def shown_setting(key: str, text: str) -> str:
    """A value for people; secrets are hidden."""
    return HIDDEN if text and is_secret(key) else text
