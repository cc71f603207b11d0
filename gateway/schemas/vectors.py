"""`POST /v1/embeddings`, `/v1/score`, `/v1/rerank` and `/classify`: their requests and answers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from typing_extensions import TypedDict

from gateway.schemas.completions import Prompts, token_prompts
from gateway.schemas.generation import LAST_CLASS, Count, truncation
from gateway.schemas.strict import Strict, contradiction, only

UseActivation = bool | None  # true by default; false: the outputs of which a classifier makes probabilities


class VectorFields(Strict):
    """Fields of every request for vectors; null means the default."""

    stream: ClassVar[bool] = False

    model: str | None = None  # the served model by default
    user: str | None = None
    truncate_prompt_tokens: Annotated[int, AfterValidator(truncation)] | None = None
    priority: Annotated[int, Field(ge=-LAST_CLASS, le=LAST_CLASS)] | None = None
    request_id: str | None = None  # vLLM's field, no effect: the server makes the ids

    @property
    def request_class(self) -> int:
        """The class of the request; the lowest is served first."""
        return self.priority or 0


class InputFields(VectorFields):
    """Fields of requests about texts, each by itself."""

    long_lists: ClassVar[frozenset[str]] = frozenset({"input"})  # of token ids

    input: Annotated[list[Any], BeforeValidator(token_prompts, Prompts)]  # of str | list[int]
    add_special_tokens: bool | None = None  # true by default


class EmbeddingRequest(InputFields):
    encoding_format: Literal["float", "base64"] | None = None  # float by default
    dimensions: Count | None = None  # the model's own by default
    prompt_name: str | None = None  # of the model's prompts, written before each text; its default one otherwise
    normalize: Annotated[None, only(True)] = None  # what the model's files say
    embed_dtype: Annotated[None, only("float32")] = None
    endianness: Annotated[None, only("native", "little")] = None


class ClassifyRequest(InputFields):
    use_activation: UseActivation = None


def _texts(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("must be a string or a list of strings")
    if not texts:
        raise ValueError("is empty")
    return texts


Texts = Annotated[list[str], BeforeValidator(_texts, str | list[str])]


class PairFields(VectorFields):
    """Fields of requests about pairs of texts. `instruction`: what a reranker is to look for, if it reads one."""

    instruction: str | None = None
    use_activation: UseActivation = None


class ScoreRequest(PairFields):
    text_1: Texts
    text_2: Texts

    @model_validator(mode="after")
    def _as_many(self) -> ScoreRequest:
        if len(self.text_1) not in (1, len(self.text_2)):
            text = f"'text_1' has {len(self.text_1)} texts and 'text_2' {len(self.text_2)}; give one, or as many"
            raise contradiction("text_1", text)
        return self


def _document(value: Any) -> Any:
    """The text of a document as Cohere's clients may write it."""
    return value["text"] if isinstance(value, dict) and value.keys() == {"text"} else value


def _documents(value: Any) -> list[str]:
    return _texts(list(map(_document, value)) if isinstance(value, list) else value)


class RerankRequest(PairFields):
    query: str
    documents: Annotated[list[str], BeforeValidator(_documents, list[str | dict[str, str]])]
    top_n: Annotated[int, Field(ge=0)] | None = None  # all by default, and with 0
    return_documents: bool | None = None  # true by default


class VectorUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int  # vLLM's field, 0


class ListHead(TypedDict):
    """What a list of vectors, scores or classes begins with."""

    id: str
    object: Literal["list"]
    created: int
    model: str


class Embedding(TypedDict):
    index: int
    object: Literal["embedding"]
    embedding: list[float] | str  # base64 of float32, little-endian


class EmbeddingList(ListHead):
    data: list[Embedding]
    usage: VectorUsage


class Score(TypedDict):
    index: int
    object: Literal["score"]
    score: float


class ScoreList(ListHead):
    data: list[Score]
    usage: VectorUsage


class Classified(TypedDict):
    index: int
    label: str  # of the class with the highest score
    probs: list[float]
    num_classes: int


class ClassList(ListHead):
    data: list[Classified]
    usage: VectorUsage


class RankedDocument(TypedDict):
    text: str


class Ranked(TypedDict):
    index: int
    relevance_score: float
    document: NotRequired[RankedDocument]


class Ranking(TypedDict):
    id: str
    model: str
    results: list[Ranked]  # the most relevant first
    usage: VectorUsage
