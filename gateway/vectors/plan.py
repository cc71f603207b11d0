"""VectorPlan: what the answer to a request for vectors needs besides them, kept as `Plan.extra`."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.answer.plan import Plan
from services import wire


@dataclass(frozen=True, slots=True)
class VectorPlan:
    """`dimensions`: of an embedding; 0: all. `base64`: how it is written. The first `firsts` of the texts are the first
    ones of pairs; 0: each text, or pair, has a score of its own. `documents`: the texts in the answer, if it has them.
    `top`: the number of results; 0: all."""

    dimensions: int = 0
    base64: bool = False
    firsts: int = 0
    documents: list[str] = field(default_factory=list)
    top: int = 0

    def pack(self) -> bytes:
        return wire.pack(self)

    @classmethod
    def of(cls, plan: Plan) -> VectorPlan:
        return wire.unpack(cls, plan.extra)
