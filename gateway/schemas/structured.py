"""The fields that constrain the text of an answer: OpenAI's formats, vLLM's `structured_outputs` and `guided_*`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, Field, model_validator

from gateway.schemas.json_size import too_many
from gateway.schemas.response_answers import TextFormat
from gateway.schemas.strict import Strict, contradiction, only, too_deep, too_long, unsupported

JsonObject = dict[str, Any]
NonEmpty = Annotated[str, Field(min_length=1)]
GrammarText = Annotated[str, Field(min_length=1, max_length=1 << 16)]
Choices = Annotated[list[str], Field(min_length=1)]


class ConstraintKind(StrEnum):
    JSON = "json"  # the value is a JSON Schema
    REGEX = "regex"
    CHOICE = "choice"  # a list of texts
    GRAMMAR = "grammar"  # Lark or GBNF
    TAGS = "structural_tag"  # a `TagFields` with structures and triggers


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint of the text of an answer. `param`: the name of its field in errors."""

    param: str
    kind: ConstraintKind
    value: Any


ANY_OBJECT: JsonObject = {"type": "object"}


def _object(value: Any) -> Any:
    """A JSON object, also as its text, which has the bounds of a body."""
    if not isinstance(value, str):
        return value
    if (reason := too_many(value.encode())) is not None:
        raise ValueError(f"has {reason}")
    try:
        parsed = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"is not valid JSON: {error}") from None
    if isinstance(parsed, dict) and too_deep(parsed):
        raise ValueError("is nested too deep")
    if isinstance(parsed, dict) and (reason := too_long(parsed)) is not None:
        raise ValueError(f"is too long: {reason.rstrip('.')}")
    return parsed


def _no_format(value: Any) -> None:
    if value is not None:
        raise unsupported("is not supported by this server; a structural tag must have 'structures' and 'triggers'")


class JsonSchema(Strict):
    """A schema and its name. The model sees neither. The answer is valid by the schema, also without `strict`. Without
    a schema, which OpenAI's document requires of responses alone, it is any object."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    schema_: JsonObject | None = Field(None, validation_alias="schema")
    description: str | None = None
    strict: bool | None = None


class Structure(Strict):
    """`begin`, then a JSON text that is valid by `schema`, then `end`."""

    begin: NonEmpty
    schema_: JsonObject = Field(validation_alias="schema")
    end: str


class TagFields(Strict):
    """Free text with structures in it. After a text that is a trigger, a structure that starts with it is forced."""

    structures: Annotated[list[Structure], Field(min_length=1)] | None = None
    triggers: Annotated[list[NonEmpty], Field(min_length=1)] | None = None
    format: Annotated[None, BeforeValidator(_no_format)] = None  # of xgrammar's newer structural tags

    def _check_tags(self) -> None:
        if not self.structures or not self.triggers:
            missing = "triggers" if self.structures else "structures"
            raise contradiction(missing, "a structural tag must have 'structures' and 'triggers'")
        for structure in self.structures:
            if not any(structure.begin.startswith(trigger) for trigger in self.triggers):
                raise contradiction("structures", f"{structure.begin[:64]!r} does not start with a trigger")


class StructuralTag(TagFields):
    type: Literal["structural_tag"] | None = None

    @model_validator(mode="after")
    def _whole(self) -> StructuralTag:
        self._check_tags()
        return self


class ResponseFormat(TagFields):
    """`response_format` of chat and completions.

    A schema beside `json_object` is read as `json_schema`: llama.cpp calls it `schema`; huggingface_hub calls it
    `value`, and writes the type as `json` too. A `regex` with its `value` is huggingface_hub's.
    """

    type: Literal["text", "json_object", "json_schema", "structural_tag", "regex"]
    json_schema: JsonSchema | None = None
    value: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _schema_of_others(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.get("type") not in ("json", "json_object"):
            return value
        found = {name: value[name] for name in ("schema", "value") if value.get(name) is not None}
        if len(found) != 1:
            return value
        rest = {name: field for name, field in value.items() if name not in ("type", "schema", "value")}
        return rest | {"type": "json_schema", "json_schema": {"name": "schema", "schema": next(iter(found.values()))}}

    @model_validator(mode="after")
    def _fields_of_type(self) -> ResponseFormat:
        for kind, param in (("json_schema", "json_schema"), ("regex", "value")):
            if (self.type == kind) != (getattr(self, param) is not None):
                must = "must" if self.type == kind else "cannot"
                raise contradiction(param, f"a format of type '{self.type}' {must} have '{param}'")
        if self.type == "structural_tag":
            self._check_tags()
        elif self.structures or self.triggers:
            param = "structures" if self.structures else "triggers"
            raise contradiction(param, f"a format of type '{self.type}' cannot have '{param}'")
        return self

    def constraint(self, param: str) -> Constraint | None:
        match self.type:
            case "text":
                return None
            case "structural_tag":
                return Constraint(param, ConstraintKind.TAGS, self)
            case "regex":
                return Constraint(param, ConstraintKind.REGEX, self.value)
            case _:
                schema = self.json_schema.schema_ if self.json_schema else None
                return Constraint(param, ConstraintKind.JSON, ANY_OBJECT if schema is None else schema)


class ResponseTextFormat(Strict):
    """`text.format` of responses."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    schema_: JsonObject | None = Field(None, validation_alias="schema")
    description: str | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _fields_of_type(self) -> ResponseTextFormat:
        given = {"name": self.name, "schema": self.schema_, "description": self.description, "strict": self.strict}
        for field, value in given.items():
            if self.type != "json_schema" and value is not None:
                raise contradiction(field, f"a format of type '{self.type}' cannot have '{field}'")
            if self.type == "json_schema" and value is None and field in ("name", "schema"):
                raise contradiction(field, f"a format of type 'json_schema' must have '{field}'")
        return self

    def constraint(self, param: str) -> Constraint | None:
        if self.type == "text":
            return None
        return Constraint(param, ConstraintKind.JSON, ANY_OBJECT if self.schema_ is None else self.schema_)

    def echo(self) -> TextFormat:
        """The format as the response object has it."""
        if self.name is None or self.schema_ is None:
            return {"type": self.type}
        made: TextFormat = {
            "type": self.type,
            "name": self.name,
            "schema": self.schema_,
            "strict": bool(self.strict),
        }
        if self.description is not None:
            made["description"] = self.description
        return made


class OutputFormat(Strict):
    """`output_config.format` of messages."""

    type: Literal["json_schema"]
    schema_: JsonObject = Field(validation_alias="schema")


class StructuredOutputs(Strict):
    """vLLM's object: one constraint, and options that change nothing here, because JSON has no free whitespace."""

    json_: Annotated[JsonObject, BeforeValidator(_object, JsonObject | str)] | None = Field(
        None, validation_alias="json"
    )
    regex: str | None = None
    choice: Choices | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None
    structural_tag: Annotated[StructuralTag, BeforeValidator(_object, StructuralTag | str)] | None = None
    disable_fallback: bool | None = None  # no effect: there is one library
    disable_any_whitespace: bool | None = None  # no effect: JSON is compact
    disable_additional_properties: Annotated[None, only(False)] = None
    whitespace_pattern: Annotated[None, only()] = None

    @model_validator(mode="after")
    def _one(self) -> StructuredOutputs:
        if not self.constraints():
            names = "json, regex, choice, grammar, json_object or structural_tag"
            raise contradiction("json", f"one of {names} must be given")
        return self

    def constraints(self) -> list[Constraint]:
        return _given(
            "structured_outputs.",
            json=self.json_,
            regex=self.regex,
            choice=self.choice,
            grammar=self.grammar,
            json_object=ANY_OBJECT if self.json_object else None,
            structural_tag=self.structural_tag,
        )


class ConstraintFields(Strict):
    """The constraints that all generating routes accept. `guided_*` are older names of vLLM."""

    structured_outputs: StructuredOutputs | None = None
    guided_json: Annotated[JsonObject, BeforeValidator(_object, JsonObject | str)] | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: GrammarText | None = None

    @model_validator(mode="after")
    def _one_constraint(self) -> ConstraintFields:
        params = [constraint.param for constraint in self._constraints()]
        if len(params) > 1:
            raise contradiction(params[1], f"'{params[0]}' and '{params[1]}' both constrain the answer; give one")
        return self

    @property
    def constraint(self) -> Constraint | None:
        """The constraint of the answer, if any."""
        return next(iter(self._constraints()), None)

    @property
    def format_constraint(self) -> Constraint | None:
        """The constraint in the response format of this route's API, if any."""
        return None

    def _constraints(self) -> list[Constraint]:
        guided = _given(
            "guided_",
            json=self.guided_json,
            regex=self.guided_regex,
            choice=self.guided_choice,
            grammar=self.guided_grammar,
        )
        own = self.format_constraint
        structured = self.structured_outputs.constraints() if self.structured_outputs else []
        return [*([own] if own else []), *structured, *guided]


def _given(prefix: str, **values: Any) -> list[Constraint]:
    kinds = {"json_object": ConstraintKind.JSON}
    return [
        Constraint(prefix + name, kinds.get(name) or ConstraintKind(name), value)
        for name, value in values.items()
        if value is not None
    ]
