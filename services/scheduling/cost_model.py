"""CostModel: estimates the seconds of an iteration from the iterations before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

DECAY = 0.98  # factor of the weight of a size with each iteration of any size
BLEND = 0.2  # weight of a new iteration in the mean of its size
# How much the fixed cost, that of a token and that of a pair are pulled towards 0, which keeps the equations solvable
# if there are too few sizes. What these cannot tell apart is not the cost of pairs: else a token with a long context
# would count like hundreds.
SMOOTH = (1e-6, 1e-6, 1e-3)


@dataclass(slots=True)
class _Mean:
    """The running mean of iterations of about one size."""

    tokens: float
    pairs: float
    seconds: float
    at: int  # the number of the last of them

    def blend(self, tokens: float, pairs: float, seconds: float, at: int) -> None:
        self.tokens += BLEND * (tokens - self.tokens)
        self.pairs += BLEND * (pairs - self.pairs)
        self.seconds += BLEND * (seconds - self.seconds)
        self.at = at


class WarmUpTime(NamedTuple):
    """An engine's first iteration: a prompt of `tokens` tokens, which took `seconds`."""

    tokens: int
    seconds: float


class Coefficients(NamedTuple):
    """seconds = fixed + per_token * tokens + per_pair * pairs."""

    fixed: float
    per_token: float
    per_pair: float


class CostModel:
    """seconds = fixed + per_token * tokens + per_pair * pairs, none of the three negative.

    A pair is a query and a key: a token with n context tokens has n + 1 pairs. One mean is kept for each size of
    iteration (powers of two). A long row of equal iterations, such as decodes, therefore does not displace the few
    others that are needed to tell the slopes from the fixed cost. The coefficients minimise the weighted squares of
    the relative errors of these means.
    """

    def __init__(self) -> None:
        self.last_seconds = 0.0  # of the last iteration
        self._coefficients: Coefficients | None = Coefficients(0.0, 0.0, 0.0)  # None: to be computed when needed
        self._seen: dict[int, _Mean] = {}
        self._count = 0

    @property
    def known(self) -> bool:
        """Whether any iteration was measured."""
        return self._count > 0

    @property
    def knows_tokens(self) -> bool:
        """Whether iterations of several sizes were measured, which tell the cost of a token from the fixed cost."""
        return len(self._seen) > 1

    def warmed_up(self, time: WarmUpTime) -> None:
        """Learn from the engine's warm-up, so that the first prompt is not computed at an unknown speed."""
        self.finished(time.tokens, time.tokens * (time.tokens + 1) // 2, time.seconds)

    def finished(self, tokens: int, pairs: int, seconds: float) -> None:
        """Learn from an iteration that took `seconds`."""
        self._count += 1
        self.last_seconds = seconds = max(seconds, 1e-6)
        if seen := self._seen.get(tokens.bit_length()):
            seen.blend(tokens, pairs, seconds, self._count)
        else:
            self._seen[tokens.bit_length()] = _Mean(tokens, pairs, seconds, self._count)
        self._coefficients = None

    @property
    def coefficients(self) -> Coefficients:
        if self._coefficients is None:
            self._coefficients = self._fit()
        return self._coefficients

    def seconds(self, tokens: int, pairs: int) -> float:
        """Estimate the seconds of an iteration."""
        fixed, per_token, per_pair = self.coefficients
        return fixed + per_token * tokens + per_pair * pairs

    def _fit(self) -> Coefficients:
        rows = [
            (DECAY ** (self._count - seen.at) / seen.seconds**2, (1.0, seen.tokens, seen.pairs), seen.seconds)
            for seen in self._seen.values()
        ]
        free = [0, 1, 2]
        while True:
            solution = _least_squares(rows, free)
            negative = [feature for feature, value in zip(free, solution, strict=True) if value < 0]
            if not negative or len(free) == 1:
                break
            free.remove(max(negative))  # pairs first: budgets depend most on the other two
        values = dict(zip(free, solution, strict=True))
        return Coefficients(*(max(0.0, values.get(i, 0.0)) for i in range(3)))


def _least_squares(rows: Sequence[tuple[float, Sequence[float], float]], free: Sequence[int]) -> list[float]:
    """Return the weights of the `free` features that minimise sum(w * (x . weights - y) ** 2).

    Features are scaled to about 1 first. SMOOTH makes the solution unique even if all rows are equal.
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
        matrix[r][r] += SMOOTH[free[r]] * (matrix[r][r] + 1e-12)
    return [value / s for value, s in zip(_solve(matrix), scale, strict=True)]


def _solve(matrix: list[list[float]]) -> list[float]:
    """Solve a positive definite system by elimination. The last column of `matrix` is the right-hand side."""
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
