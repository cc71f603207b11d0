"""The answers to requests for vectors: a function of their plan and of the vectors that the pool has."""

from __future__ import annotations

import base64
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from gateway.answer.choice import failure
from gateway.answer.plan import Plan
from gateway.errors import ApiError
from gateway.model import ServedModel
from gateway.schemas.vectors import (
    Classified,
    ClassList,
    Embedding,
    EmbeddingList,
    ListHead,
    Ranked,
    Ranking,
    Score,
    ScoreList,
    VectorUsage,
)
from services import wire
from services.messages import TokenEvent

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class VectorPlan:
    """What an answer needs besides the vectors, kept as `Plan.extra`.

    `dimensions`: of an embedding; 0: all. `base64`: how it is written. The first `firsts` of the texts are the first
    ones of pairs; 0: each text, or pair, has a score of its own. `documents`: the texts in the answer, if it has them.
    `top`: the number of results; 0: all. `raw`: scores of classes instead of probabilities."""

    dimensions: int = 0
    base64: bool = False
    firsts: int = 0
    documents: list[str] = field(default_factory=list)
    top: int = 0
    raw: bool = False

    def pack(self) -> bytes:
        return wire.pack(self)

    @classmethod
    def of(cls, plan: Plan) -> VectorPlan:
        return wire.unpack(cls, plan.extra)


class VectorAnswer(ABC):
    """Collects the vectors of one request. See WholeAnswer."""

    def __init__(self, plan: Plan, model: ServedModel, request: str) -> None:
        self.error: ApiError | None = None
        self._plan, self._model, self._request = plan, model, request
        self._vectors: dict[str, bytes] = {}
        self._num_ended = 0
        self.asked = VectorPlan.of(plan)

    @property
    def ended(self) -> bool:
        return self._num_ended == self._plan.choices

    def add(self, events: list[TokenEvent]) -> None:
        """Take the next events, up to the first one of a text that failed."""
        for event in events:
            if event.logprobs is not None:
                self._vectors[event.id] = event.logprobs.vector
            if event.end is not None and self.error is None:
                self.error = failure(event.end)
                self._num_ended += self.error is None

    def body(self) -> bytes:
        return orjson.dumps(self._object(), option=orjson.OPT_SERIALIZE_NUMPY)

    @abstractmethod
    def _object(self) -> Any: ...

    def _vector(self, number: int) -> Vector:
        return np.frombuffer(self._vectors[f"{self._request}/{number}"], "<f4")

    def _head(self) -> ListHead:
        return {"id": self._request, "object": "list", "created": self._plan.created, "model": self._model.name}

    def _usage(self) -> VectorUsage:
        count = self._plan.prompt_tokens
        return {"prompt_tokens": count, "total_tokens": count, "completion_tokens": 0}

    def _activated(self, scores: list[float]) -> list[float]:
        pooling = self._model.info.pooling
        assert pooling is not None, f"{self._request} is for vectors"
        return activated(scores, "none" if self.asked.raw else pooling.activation)

    def _scores(self) -> list[float]:
        """The score of each pair: what a classifier says of it, or the cosine of its texts' embeddings."""
        firsts = self.asked.firsts
        if not firsts:
            vectors = map(self._vector, range(self._plan.choices))
            return [self._activated(vector.tolist())[0] for vector in vectors]
        seconds = range(firsts, self._plan.choices)
        return [cosine(self._vector(i if firsts > 1 else 0), self._vector(other)) for i, other in enumerate(seconds)]


class Embeddings(VectorAnswer):
    """The answer to `/v1/embeddings`."""

    def _object(self) -> EmbeddingList:
        data = [self._embedding(i) for i in range(self._plan.choices)]
        return {**self._head(), "data": data, "usage": self._usage()}

    def _embedding(self, number: int) -> Embedding:
        vector = self._vector(number)
        if self.asked.dimensions:
            vector = shortened(vector, self.asked.dimensions)
        # orjson writes an array of float32 in the fewest digits that say it
        written: Any = base64.b64encode(vector.tobytes()).decode() if self.asked.base64 else vector
        return {"index": number, "object": "embedding", "embedding": written}


class Scores(VectorAnswer):
    """The answer to `/v1/score`."""

    def _object(self) -> ScoreList:
        data: list[Score] = [{"index": i, "object": "score", "score": s} for i, s in enumerate(self._scores())]
        return {**self._head(), "data": data, "usage": self._usage()}


class Ranks(VectorAnswer):
    """The answer to `/v1/rerank`: the highest scores first, and of equal ones the first document."""

    def _object(self) -> Ranking:
        scores = self._scores()
        order = sorted(range(len(scores)), key=lambda i: -scores[i])[: self.asked.top or None]
        return {
            "id": self._request,
            "model": self._model.name,
            "results": [self._ranked(i, scores[i]) for i in order],
            "usage": self._usage(),
        }

    def _ranked(self, index: int, score: float) -> Ranked:
        if self.asked.documents:
            return {"index": index, "relevance_score": score, "document": {"text": self.asked.documents[index]}}
        return {"index": index, "relevance_score": score}


class Classes(VectorAnswer):
    """The answer to `/classify`."""

    def _object(self) -> ClassList:
        data = [self._classified(i) for i in range(self._plan.choices)]
        return {**self._head(), "data": data, "usage": self._usage()}

    def _classified(self, number: int) -> Classified:
        pooling, scores = self._model.info.pooling, self._vector(number).tolist()
        assert pooling is not None, f"{self._request} is for vectors"
        best = scores.index(max(scores))
        label = pooling.labels[best] if pooling.labels else f"LABEL_{best}"
        made = self._activated(scores)
        return {"index": number, "label": label, "probs": made, "num_classes": len(made)}


# Sums are exact, so that all gateways write the same numbers.


def shortened(vector: Vector, dimensions: int) -> Vector:
    """The first numbers of a vector, divided by their length."""
    first = vector[:dimensions].astype(np.float64)
    return (first / (math.sqrt(math.fsum(first * first)) or 1.0)).astype("<f4")


def cosine(one: Vector, other: Vector) -> float:
    """The cosine of the angle between two vectors; 0 if one has no length."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    lengths = math.sqrt(math.fsum(a * a)) * math.sqrt(math.fsum(b * b))
    return math.fsum(a * b) / lengths if lengths else 0.0


def activated(scores: list[float], activation: str) -> list[float]:
    """A classifier's scores as probabilities, unless its model says that the scores are what is asked for."""
    if activation == "none":
        return scores
    if activation == "sigmoid":
        return [1.0 / (1.0 + math.exp(-score)) if score > -700.0 else 0.0 for score in scores]
    most = max(scores)
    powers = [math.exp(score - most) for score in scores]
    whole = math.fsum(powers)
    return [power / whole for power in powers]
