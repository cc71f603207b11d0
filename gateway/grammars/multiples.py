"""Bounds `multipleOf` in schemas: llguidance needs a state for each remainder, which its limits do not count."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from math import lcm

from services.errors import GrammarError

MOST = 10_000  # remainders; they take about 50 ms and 10 MB

_ESCAPE = re.compile(r"\\u00([2-7][0-9a-fA-F])")
_MULTIPLE = re.compile(r'multipleOf"\s*:\s*([-+.0-9eE]{1,64})')


def check_multiples(text: str) -> None:
    """Raises GrammarError if the common multiple of all `multipleOf` in `text` is too large. Schemas in `allOf` have to
    hold together, so that the remainders are those of the common multiple. Zeros at the end do not count."""
    plain = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    common = 1
    for number in set(_MULTIPLE.findall(plain)):
        common = lcm(common, _digits(number))
        if common > MOST:
            raise GrammarError(f"'multipleOf': the common multiple of all its values has to be at most {MOST:,}")


def _digits(number: str) -> int:
    """The digits of a number as an integer, without zeros at the end; 1 for what is not a number above zero, which
    llguidance refuses."""
    try:
        digits = int("".join(map(str, Decimal(number).as_tuple().digits)).rstrip("0") or 1)
    except InvalidOperation:
        return 1
    return digits
