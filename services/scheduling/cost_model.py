"""CostModel: what an iteration of this engine costs, by all those before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

FORGET = 0.98  # weight of what was seen of one size, an iteration of any size later
BLEND = 0.2  # of a new iteration into what was seen of its size
SMOOTH = 1e-6  # keeps a system of too few sizes solvable


@dataclass(slots=True)
class _Seen:
    """Iterations of about one size: a running mean."""

    tokens: float
    pairs: float
    seconds: float
    at: int  # iterations before the last of them

    def blend(self, tokens: float, pairs: float, seconds: float, at: int) -> None:
        self.tokens += BLEND * (tokens - self.tokens)
        self.pairs += BLEND * (pairs - self.pairs)
        self.seconds += BLEND * (seconds - self.seconds)
        self.at = at


class Law(NamedTuple):
    """seconds = fixed + per_token * tokens + per_pair * pairs."""

    fixed: float
    per_token: float
    per_pair: float


class CostModel:
    """seconds = fixed + per_token * tokens + per_pair * pairs, none of the three negative.

    `pairs` are query and key: a token behind n others has n + 1. Iterations are kept as one mean for each size
    (powers of two): a long row of equal ones then does not crowd out the few others, without which a slope cannot be
    told from a level. The three are the weighted least squares of relative errors over these means.
    """

    def __init__(self) -> None:
        self.last = 0.0  # seconds of the last iteration
        self._law: Law | None = Law(0.0, 0.0, 0.0)  # None: to be estimated anew when somebody asks
        self._seen: dict[int, _Seen] = {}
        self._count = 0

    @property
    def known(self) -> bool:
        return self._count > 0

    def finished(self, tokens: int, pairs: int, seconds: float) -> None:
        """An iteration of so many tokens took `seconds`."""
        self._count += 1
        self.last = seconds = max(seconds, 1e-6)
        if seen := self._seen.get(tokens.bit_length()):
            seen.blend(tokens, pairs, seconds, self._count)
        else:
            self._seen[tokens.bit_length()] = _Seen(tokens, pairs, seconds, self._count)
        self._law = None

    @property
    def law(self) -> Law:
        if self._law is None:
            self._law = self._fit()
        return self._law

    def seconds(self, tokens: int, pairs: int) -> float:
        fixed, per_token, per_pair = self.law
        return fixed + per_token * tokens + per_pair * pairs

    def _fit(self) -> Law:
        rows = [
            (FORGET ** (self._count - seen.at) / seen.seconds**2, (1.0, seen.tokens, seen.pairs), seen.seconds)
            for seen in self._seen.values()
        ]
        free = [0, 1, 2]
        while True:
            solution = _least_squares(rows, free)
            negative = [feature for feature, value in zip(free, solution, strict=True) if value < 0]
            if not negative or len(free) == 1:
                break
            free.remove(max(negative))  # pairs first: the level and the tokens' slope are what budgets are made of
        values = dict(zip(free, solution, strict=True))
        return Law(*(max(0.0, values.get(i, 0.0)) for i in range(3)))


def _least_squares(rows: Sequence[tuple[float, Sequence[float], float]], free: Sequence[int]) -> list[float]:
    """Weights of the `free` features that bring sum(w * (x . weights - y) ** 2) to its least.

    Features are scaled to about 1 first; by SMOOTH each is pulled to 0, so that equal rows leave one answer.
    """
    scale = [max(abs(x[i]) for _, x, _ in rows) or 1.0 for i in free]
    size = len(free)
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for weight, x, y in rows:
        scaled = [x[i] / s for i, s in zip(free, scale, strict=True)]
        for r in range(size):
            wx = weight * scaled[r]
            row = matrix[r]
            for c in range(size):
                row[c] += wx * scaled[c]
            row[size] += wx * y
    for r in range(size):
        matrix[r][r] += SMOOTH * (matrix[r][r] + 1e-12)
    return [value / s for value, s in zip(_solve(matrix), scale, strict=True)]


def _solve(matrix: list[list[float]]) -> list[float]:
    """The solution of a positive definite system, by elimination; its last column is the right side."""
    size = len(matrix)
    for pivot in range(size):
        for row in range(pivot + 1, size):
            factor = matrix[row][pivot] / matrix[pivot][pivot]
            for column in range(pivot, size + 1):
                matrix[row][column] -= factor * matrix[pivot][column]
    solution = [0.0] * size
    for row in reversed(range(size)):
        known = sum(matrix[row][column] * solution[column] for column in range(row + 1, size))
        solution[row] = (matrix[row][size] - known) / matrix[row][row]
    return solution
