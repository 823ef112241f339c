"""An export that is killed at each of its steps and begun again, while its store grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


class Killed(BaseException):
    """The process ends here; nothing is to catch it."""


def killed_everywhere(store: Any, run: Callable[..., object]) -> list[bytes]:
    """Appends three messages before each of several exports, and kills all but the last once.

    Args:
        store: the fixture ``growing_store``; its topic "odd name%" gets red and blue messages.
        run: exports once; takes ``step``, as `export` does.

    Returns:
        The messages' bodies, in the order of the log.
    """
    from oberth.spark.pipelines.export.exporter import STEPS

    bodies: list[bytes] = []
    for number, victim in enumerate([*STEPS, ""]):
        for each in range(3):
            bodies.append(b"%d-%d" % (number, each))
            store.append("odd name%", 0, bodies[-1], tags=("red", "blue")[each % 2])

        def step(name: str, victim: str = victim) -> None:
            if name == victim:
                raise Killed

        if victim:
            with pytest.raises(Killed):
                run(step=step)
        run()
    return bodies
