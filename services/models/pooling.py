"""Pooling: what an embedding model or a classifier makes of the hidden states of a text, as its folder says.

A model generates text unless its folder says otherwise: by the files of sentence-transformers (modules.json and the
folders it names), by its architecture, or by the setting `hf_overrides`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from services.errors import ModelError
from services.models.json_file import read_json, read_json_list

MODULES = "modules.json"  # of sentence-transformers
OVERRIDES = "orca_overrides.json"  # what the setting `hf_overrides` puts before the fields of config.json
RUNNER = "runner"  # one of these fields, vLLM's flag
RUNNERS = ("auto", "generate", "pooling")
# vLLM's other names for them, as values of `task` and `convert`
TASKS = {"generate": "generate", "auto": "auto", "none": "auto"} | dict.fromkeys(
    ("pooling", "embed", "embedding", "classify", "score"), "pooling"
)
GENERATING = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "ChatModel")  # ends of architectures' names
CLASSIFYING = "ForSequenceClassification"
# Types of models whose tokens attend to all tokens of their text, and those of them whose positions begin behind the
# padding token's id.
ENCODERS = frozenset({"bert", "distilbert", "roberta", "xlm-roberta", "camembert", "modernbert", "nomic_bert"})
BEHIND_PADDING = frozenset({"roberta", "xlm-roberta", "camembert"})

Method = Literal["last", "mean", "cls"]
_METHODS: dict[str, Method] = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "lasttoken": "last",
    "mean": "mean",
    "cls": "cls",
}


@dataclass(frozen=True, slots=True)
class Pooling:
    """`kind`: whether the vector is an embedding or the scores of classes. `method`: which hidden states it is made of:
    the last token's, the first one's, or the mean of all. `dense`: folders of further layers. `size`: numbers of the
    vector. `normalize`: to length 1. `encoder`: tokens attend to all tokens of their text.

    `dimensions`: shorter sizes for which an embedding model is trained; empty if it is trained for any
    (`any_dimension`) or for none. `prompts`: texts that are written before a text, by name; `default_prompt` names the
    one that is written without being asked for. `yes_no`: the tokens whose logits a reranker compares, no and yes.
    `max_length`: tokens of a text, 0: as many as the model takes. `lower_case`: texts are lowered first. `activation`:
    what makes probabilities of a classifier's scores. `labels`: the names of its classes, if it has any.
    """

    kind: Literal["embed", "classify"]
    method: Method
    size: int
    normalize: bool = True
    encoder: bool = False
    dense: tuple[str, ...] = ()
    dimensions: tuple[int, ...] = ()
    any_dimension: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    yes_no: tuple[str, ...] = ()
    max_length: int = 0
    lower_case: bool = False
    activation: Literal["sigmoid", "softmax", "none"] = "none"
    labels: tuple[str, ...] = ()

    @property
    def noun(self) -> str:
        """What errors call the model."""
        return "an embedding model" if self.kind == "embed" else "a reranker" if self.size == 1 else "a classifier"

    @property
    def routes(self) -> str:
        """The routes that errors advise."""
        if self.kind == "embed":
            return "/v1/embeddings"
        return "/v1/score or /v1/rerank" if self.size == 1 else "/classify"

    @property
    def whole(self) -> bool:
        """Whether all tokens of a text must be computed in one iteration."""
        return self.encoder or self.method == "mean"


def check_overrides(values: Mapping[str, Any]) -> None:
    """Raises ValueError for a field that no model reads here, or a value of another type."""
    kinds = {RUNNER: str, "architectures": list, "classifier_from_token": list, "is_original_qwen3_reranker": bool}
    kinds |= {"is_matryoshka": bool, "matryoshka_dimensions": list, "num_labels": int}
    for name, value in values.items():
        if name not in kinds:
            raise ValueError(f"{name} is none of {', '.join(kinds)}")
        if not isinstance(value, kinds[name]):
            raise ValueError(f"{name} must be of type {kinds[name].__name__}, not {value!r}")
    if values.get(RUNNER, "auto") not in RUNNERS:
        raise ValueError(f"runner must be one of {', '.join(RUNNERS)}, not {values[RUNNER]!r}")


def pooling_of(folder: Path) -> Pooling | None:
    """`read_pooling` of the model in `folder`."""
    return read_pooling(folder, read_json(folder / "config.json") or {})


def read_pooling(folder: Path, config: Mapping[str, Any]) -> Pooling | None:
    """Return the pooling of the model in `folder`, whose config.json is `config`; None for a model that generates text.

    Raises ModelError for a module or a way of pooling that is not served.
    """
    config = {**config, **(read_json(folder / OVERRIDES) or {})}
    text = config.get("text_config") or config
    architecture = str((config.get("architectures") or [""])[0])
    encoder = config.get("model_type") in ENCODERS or bool(text.get("use_bidirectional_attention"))
    yes_no = tuple(map(str, config.get("classifier_from_token") or ()))
    if yes_no or (architecture.endswith(CLASSIFYING) and config.get(RUNNER) != "generate"):
        return _classifier(folder, config, text, encoder, yes_no)
    modules = read_json_list(folder / MODULES)
    asked = config.get(RUNNER, "auto")
    pools = modules is not None or (architecture.endswith("Model") and not architecture.endswith(GENERATING))
    if asked == "generate" or (asked == "auto" and not pools):
        return None
    return _embedder(folder, config, text, encoder, modules)


def _classifier(
    folder: Path, config: Mapping[str, Any], text: Mapping[str, Any], encoder: bool, yes_no: tuple[str, ...]
) -> Pooling:
    if yes_no and len(yes_no) != 2:
        raise ModelError(f"{folder}: classifier_from_token names {len(yes_no)} tokens, it must name two: no and yes")
    labels = config.get("id2label")
    size = 1 if yes_no else len(labels) if labels else int(config.get("num_labels") or 2)
    method: Method = "cls" if encoder else "last"
    told = (config.get("sentence_transformers") or {}).get("activation_fn")
    told = str(told or config.get("sbert_ce_default_activation_function") or "").rpartition(".")[2]
    alone = size == 1 or config.get("problem_type") == "multi_label_classification"
    usual: Literal["sigmoid", "softmax"] = "sigmoid" if alone else "softmax"
    activation = "none" if told == "Identity" else "sigmoid" if told == "Sigmoid" else usual
    names = {int(number): str(name) for number, name in (labels or {}).items()}
    known = () if yes_no else tuple(names.get(number, f"LABEL_{number}") for number in range(size))
    return Pooling("classify", method, size, False, encoder, yes_no=yes_no, activation=activation, labels=known)


def _embedder(
    folder: Path, config: Mapping[str, Any], text: Mapping[str, Any], encoder: bool, modules: list[Any] | None
) -> Pooling:
    method: Method = "cls" if encoder else "last"
    normalize, dense = modules is None, []
    size = int(text.get("hidden_size") or text.get("n_embd") or text.get("dim") or 0)
    for module in modules or ():
        kind, path = str(module["type"]).rpartition(".")[2], str(module.get("path") or "")
        own = read_json(folder / path / "config.json") or {}
        if kind == "Pooling":
            method = _method(folder, own)
        elif kind == "Normalize":
            normalize = True
        elif kind == "Dense":
            dense.append(path)
            size = int(own["out_features"])
        elif kind != "Transformer" or path:
            raise ModelError(f"{folder / MODULES}: a module of type {kind} in {path or 'the folder'!r} is not served")
    told = read_json(folder / "config_sentence_transformers.json") or {}
    limits = [read_json(file) or {} for file in sorted(folder.glob("sentence_*_config.json"))]
    trained = tuple(sorted(int(n) for n in config.get("matryoshka_dimensions") or ()))
    return Pooling(
        kind="embed",
        method=method,
        size=size,
        normalize=normalize,
        encoder=encoder,
        dense=tuple(dense),
        dimensions=trained,
        any_dimension=bool(config.get("is_matryoshka")) and not trained,
        prompts={str(name): str(prompt) for name, prompt in (told.get("prompts") or {}).items()},
        default_prompt=str(told.get("default_prompt_name") or ""),
        max_length=next((int(one["max_seq_length"]) for one in limits if one.get("max_seq_length")), 0),
        lower_case=any(one.get("do_lower_case") for one in limits),
    )


def _method(folder: Path, config: Mapping[str, Any]) -> Method:
    """The method that a module of pooling names, in the format of any release of sentence-transformers."""
    modes = config.get("pooling_mode")
    named = [modes] if isinstance(modes, str) else list(modes or ())
    named += [name for name, on in config.items() if name.startswith("pooling_mode_") and on is True]
    if len(named) != 1 or named[0] not in _METHODS:
        raise ModelError(f"{folder}: pooling by {', '.join(map(str, named)) or 'nothing'} is not served")
    if config.get("include_prompt") is False:
        raise ModelError(f"{folder}: pooling that leaves out the tokens of the prompt is not served")
    return _METHODS[named[0]]
