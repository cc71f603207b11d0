"""Grammars: the time of masks in an iteration, and how often a mask leaves one token."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from load.options import Options, load_exact_engine
from load.report import table
from load.workloads import any_prompt
from services.engine.engine import Engine
from services.engine.sampling.grammars import OutputGrammar
from services.messages import Iteration, NewRequest
from services.requests import SamplingParams

TEXT = {"type": "string"}
PERSON = {"name": TEXT, "age": {"type": "integer"}, "about": TEXT, "tags": {"type": "array", "items": TEXT}}
SCHEMAS: dict[str, dict[str, Any]] = {
    "a person": {"type": "object", "properties": PERSON, "required": list(PERSON), "additionalProperties": False},
    "any object": {"type": "object"},
    "a list of choices": {"type": "array", "items": {"enum": ["red", "green", "dark blue"]}, "minItems": 40},
}


@dataclass(frozen=True, slots=True)
class Size:
    widths: tuple[int, ...] = (1, 8, 32)  # requests of an iteration
    prompt: int = 32  # tokens
    steps: int = 40  # iterations that are measured


class Clock:
    """Seconds in a function in each iteration, and how many masks it left with one token."""

    def __init__(self) -> None:
        self.seconds, self.single, self.masks = [0.0], 0, 0

    @contextmanager
    def around(self, owner: Any, name: str) -> Any:
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = function(*arguments)
            self.seconds[-1] += time.perf_counter() - began
            mask = getattr(arguments[0], "mask", None)
            if mask is not None:
                self.masks += 1
                self.single += int(np.unpackbits(mask.view(np.uint8)).sum()) == 1
            return result

        setattr(owner, name, timed)
        try:
            yield
        finally:
            setattr(owner, name, function)


def run(options: Options) -> str:
    return report(load_exact_engine(options), Size())


def report(engine: Engine, size: Size) -> str:
    rows = [[str(width), name, *measure(engine, size, width, name)] for width in size.widths for name in SCHEMAS]
    head = ["requests", "schema", "iteration, ms", "masks, ms", "applied, ms", "share", "masks of one token"]
    return (
        f"{engine.figures.numerics}; temperature 1, medians of {size.steps} iterations of one token each.\n\n"
        + table(head, rows)
    )


def measure(engine: Engine, size: Size, width: int, name: str) -> list[str]:
    options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    grammar = "start: %json " + json.dumps(SCHEMAS[name] | {"x-guidance": options})
    blocks = -(-(size.prompt + size.steps + 2) // engine.figures.block_size)
    engine.reset("grammars")
    new, places = [], {}
    for i in range(width):
        new.append(
            NewRequest(str(i), any_prompt(size.prompt, i), size.prompt, SamplingParams(99, seed=i, grammar=grammar))
        )
        places[str(i)] = list(range(i * blocks, (i + 1) * blocks))
    engine.run(Iteration("grammars", 0, {one.id: size.prompt for one in new}, new, places))
    engine.run(Iteration("grammars", 1, {one.id: 1 for one in new}))
    masks, applied = Clock(), Clock()
    seconds: list[float] = []
    with masks.around(OutputGrammar, "advance"), applied.around(engine.sampler.search, "masked"):
        for step in range(size.steps):
            result = engine.run(Iteration("grammars", 2 + step, {one.id: 1 for one in new}))
            seconds.append(result.elapsed)
            for clock in (masks, applied):
                clock.seconds.append(0.0)
    each = [median(clock.seconds[:-1]) for clock in (masks, applied)]
    return [
        f"{median(seconds) * 1e3:.1f}",
        *(f"{one * 1e3:.2f}" for one in each),
        f"{sum(each) / median(seconds):.1%}",
        f"{masks.single / max(1, masks.masks):.0%}",
    ]
