"""The endpoints of vectors. A request for them is a group with a sequence for each text, whose one output token stands
for the text's vector."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeVar

from fastapi import Request
from starlette.responses import Response

from gateway.answer.plan import AnswerKind
from gateway.endpoint import Endpoint
from gateway.errors import ApiError, Kind
from gateway.gateway import Gateway
from gateway.http.headers import Caller, Position
from gateway.pool_client.following import Generation
from gateway.schemas.vectors import (
    ClassifyRequest,
    ClassList,
    EmbeddingList,
    EmbeddingRequest,
    PairFields,
    Ranking,
    RerankRequest,
    ScoreList,
    ScoreRequest,
    VectorFields,
)
from gateway.validation import SEQUENCE_SIZE, ValidatedRequest
from gateway.vectors import answer
from gateway.vectors.answer import VectorPlan
from gateway.vectors.inputs import VectorInputs
from services.messages import EngineFigures
from services.models.pooling import Pooling
from services.text.tokenizer import EncodedText

F = TypeVar("F", bound=VectorFields)
P = TypeVar("P", bound=PairFields)


class _Vectors(Endpoint[F]):
    """An endpoint whose answer is made of vectors."""

    event_type = None
    answers: ClassVar[type[answer.VectorAnswer]]

    async def validate(self, gateway: Gateway, fields: F, caller: Caller) -> ValidatedRequest:
        def work(figures: EngineFigures) -> ValidatedRequest:
            gateway.validator.check_model(fields.model)
            pooling = self.pooling(gateway)
            inputs = VectorInputs(gateway.model, pooling, bool(gateway.settings.chat_template))
            plan, param, texts = self.texts(fields, pooling, inputs)
            return gateway.validator.vectors(self.kind, fields, texts, param, figures, caller, plan.pack())

        return await gateway.validator.run(caller, caller.size + SEQUENCE_SIZE * self.count(fields), work)

    def pooling(self, gateway: Gateway) -> Pooling:
        """The pooling of the served model. Raises ApiError if it is of another kind."""
        model, pooling = gateway.model, gateway.model.info.pooling
        if pooling is None:
            text = f"The model '{model.name}' generates text, it makes no vectors; use /v1/chat/completions"
            raise ApiError(
                Kind.INVALID, f"{text}, or serve an embedding model (or this one with --runner pooling).", "model"
            )
        return pooling

    @abstractmethod
    def count(self, fields: F) -> int:
        """About how many texts there are."""

    @abstractmethod
    def texts(self, fields: F, pooling: Pooling, inputs: VectorInputs) -> tuple[VectorPlan, str, Sequence[EncodedText]]:
        """The plan of the answer, the field with the texts, and their token ids. Raises ApiError."""

    async def answer(self, gateway: Gateway, generation: Generation, queue: str) -> answer.VectorAnswer:
        return self.answers(generation.plan, gateway.model, generation.request)

    async def stream(
        self, gateway: Gateway, generation: Generation, position: Position | None, with_ids: bool, request: Request
    ) -> Response:
        generation.close()
        raise ApiError(Kind.INVALID, f"'{generation.request}' is for vectors, which are no stream.")


class Embeddings(_Vectors[EmbeddingRequest]):
    """Makes a vector of each text, as OpenAI's and vLLM's route of this name."""

    name = "embeddings"
    path = "/v1/embeddings"
    kind = AnswerKind.EMBEDDING
    schema = EmbeddingRequest
    answer_type = EmbeddingList
    answers = answer.Embeddings

    def count(self, fields: EmbeddingRequest) -> int:
        return len(fields.input)

    def texts(
        self, fields: EmbeddingRequest, pooling: Pooling, inputs: VectorInputs
    ) -> tuple[VectorPlan, str, Sequence[EncodedText]]:
        if pooling.kind != "embed":
            text = f"This model is {pooling.noun}, which makes no embeddings; use {pooling.routes}."
            raise ApiError(Kind.INVALID, text, "model")
        size = fields.dimensions or 0
        if size:
            _check_dimensions(size, pooling)
        prompt, special = inputs.prompt(fields.prompt_name), fields.add_special_tokens is not False
        found = inputs.mixed(fields.input, fields.truncate_prompt_tokens, special, prompt)
        return VectorPlan(size if size < pooling.size else 0, fields.encoding_format == "base64"), "input", found


class _Pairs(_Vectors[P]):
    """An endpoint about pairs of texts."""

    batched = False

    def read(
        self, fields: P, pooling: Pooling, inputs: VectorInputs, firsts: list[str], seconds: list[str], param: str
    ) -> tuple[int, Sequence[EncodedText]]:
        """How many first texts have vectors of their own, and the token ids of all texts, or of pairs."""
        keep = fields.truncate_prompt_tokens
        if pooling.kind == "embed":
            return len(firsts), inputs.encoded([*firsts, *seconds], param, keep)
        if pooling.size > 1:
            text = f"This model is a classifier of {pooling.size} classes; scores are made by one of a single class"
            raise ApiError(Kind.INVALID, f"{text}; use /classify.", "model")
        firsts = firsts if len(firsts) > 1 else firsts * len(seconds)
        return 0, inputs.pairs(list(zip(firsts, seconds, strict=True)), fields.instruction, param, keep)


class Score(_Pairs[ScoreRequest]):
    """Scores pairs of texts, as vLLM's route of this name: by a reranker, or by the cosine of embeddings."""

    name = "score"
    path = "/v1/score"
    aliases = ("/score",)
    kind = AnswerKind.SCORE
    schema = ScoreRequest
    answer_type = ScoreList
    answers = answer.Scores

    def count(self, fields: ScoreRequest) -> int:
        return len(fields.text_1) + len(fields.text_2)

    def texts(
        self, fields: ScoreRequest, pooling: Pooling, inputs: VectorInputs
    ) -> tuple[VectorPlan, str, Sequence[EncodedText]]:
        firsts, found = self.read(fields, pooling, inputs, fields.text_1, fields.text_2, "text_2")
        return VectorPlan(firsts=firsts, raw=fields.use_activation is False), "text_2", found


class Rerank(_Pairs[RerankRequest]):
    """Ranks documents by their relevance to a query, as the route of this name of Jina, Cohere and vLLM."""

    name = "rerank"
    path = "/v1/rerank"
    aliases = ("/rerank", "/v2/rerank")
    kind = AnswerKind.RERANK
    schema = RerankRequest
    answer_type = Ranking
    answers = answer.Ranks

    def count(self, fields: RerankRequest) -> int:
        return 1 + len(fields.documents)

    def texts(
        self, fields: RerankRequest, pooling: Pooling, inputs: VectorInputs
    ) -> tuple[VectorPlan, str, Sequence[EncodedText]]:
        query, documents = fields.query, fields.documents
        if pooling.kind == "embed":
            default = pooling.default_prompt
            query = pooling.prompts.get("query", pooling.prompts.get(default, "")) + query
            before = pooling.prompts.get("document", pooling.prompts.get(default, ""))
            documents = [before + text for text in documents]
        firsts, found = self.read(fields, pooling, inputs, [query], documents, "documents")
        kept = [] if fields.return_documents is False else fields.documents
        raw = fields.use_activation is False
        return VectorPlan(firsts=firsts, documents=kept, top=fields.top_n or 0, raw=raw), "documents", found


class Classify(_Vectors[ClassifyRequest]):
    """Says of which class each text is, as vLLM's route of this name."""

    name = "classify"
    path = "/classify"
    kind = AnswerKind.CLASSIFY
    schema = ClassifyRequest
    answer_type = ClassList
    answers = answer.Classes
    batched = False

    def count(self, fields: ClassifyRequest) -> int:
        return len(fields.input)

    def texts(
        self, fields: ClassifyRequest, pooling: Pooling, inputs: VectorInputs
    ) -> tuple[VectorPlan, str, Sequence[EncodedText]]:
        if pooling.kind != "classify":
            text = f"This model is {pooling.noun}, which knows no classes; use {pooling.routes}."
            raise ApiError(Kind.INVALID, text, "model")
        found = inputs.mixed(fields.input, fields.truncate_prompt_tokens, fields.add_special_tokens is not False)
        return VectorPlan(raw=fields.use_activation is False), "input", found


def _check_dimensions(size: int, pooling: Pooling) -> None:
    """Raises ApiError for a size that the model's vectors cannot have."""
    if size == pooling.size or size in pooling.dimensions or (pooling.any_dimension and size < pooling.size):
        return
    known = ", ".join(map(str, pooling.dimensions))
    allowed = f"one of {known}" if known else f"1 to {pooling.size}" if pooling.any_dimension else str(pooling.size)
    trained = (
        "" if known or pooling.any_dimension else "; it is not trained for shorter vectors, as its config.json says"
    )
    text = f"Invalid 'dimensions': the model's vectors have {allowed} numbers{trained} (got {size})."
    raise ApiError(Kind.INVALID, text, "dimensions")
