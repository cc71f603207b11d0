"""SamplingDefaults: how a request is sampled that does not say so, as the model's generation_config.json has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any, Self

from services.errors import ModelError
from services.models.json_file import read_json

FILE = "generation_config.json"
NEUTRAL = "vllm"  # the setting `generation_config` with which the model's sampling is ignored
_WHOLE = {"top_k", "max_new_tokens"}
# the least and the greatest value that is accepted, as in a request
_BOUNDS: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (-1, (1 << 31) - 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 10),
    "max_new_tokens": (1, inf),
}


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """The values for fields that a request leaves out; None: the neutral one of `SamplingParams`.

    The names are those of transformers' GenerationConfig. As in vLLM, its `do_sample` is ignored. `max_new_tokens` is
    the default of chats, and no limit.
    """

    temperature: float | None = None  # 0 is greedy
    top_p: float | None = None
    top_k: int | None = None  # 0 is off
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None

    @classmethod
    def load(cls, folder: Path, generation_config: str = "auto", override: Mapping[str, Any] | None = None) -> Self:
        """Return those of the model in `folder`, or none if `generation_config` is `NEUTRAL`. The values of `override`
        go before. Raises ModelError, which names a value that is out of range.
        """
        path = folder / FILE
        given = {} if generation_config == NEUTRAL else read_json(path) or {}
        where = str(path) if generation_config == "auto" else "generation_config"  # not a file of the cache
        try:
            own = check_override(override or {})
        except ValueError as error:
            raise ModelError(f"override_generation_config: {error}") from None
        return cls(**check_config(given, where) | own)

    def given(self) -> dict[str, float]:
        """Return the values that are not None, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in self.given().items())


def check_config(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values of a generation_config.json that are sampling defaults. Raises ModelError, which names the file by
    `where`, and a value that is out of range."""
    try:
        return {name: _checked(name, config[name]) for name in _BOUNDS if config.get(name) is not None}
    except ValueError as error:
        raise ModelError(f"{where}: {error}") from None


def check_override(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the setting `override_generation_config` as defaults. Raises ValueError for an unknown name, and
    for a value that is out of range."""
    return {name: _checked(name, value) for name, value in values.items()}


def _checked(name: str, value: Any) -> Any:
    if name not in _BOUNDS:
        raise ValueError(f"{name} is none of {', '.join(_BOUNDS)}")
    least, most = _BOUNDS[name]
    number = isinstance(value, int if name in _WHOLE else int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most or (name == "top_p" and value == 0):
        wanted = "a whole number" if name in _WHOLE else "a number"
        bounds = f"of at least {least:g}" if most == inf else f"from {least:g} to {most:g}"
        raise ValueError(f"{name} must be {wanted} {bounds}, not {value!r}")
    return max(value, 0) if name == "top_k" else value
