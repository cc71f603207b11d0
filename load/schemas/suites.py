"""Suites: JSON schemas with valid and invalid instances.

They are read from folders of JSON-Schema-Test-Suite and of JSONSchemaBench.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEPARATORS = (", ", ": ")  # of the JSON that grammars allow: gateway/grammars/rules.py

# what `$schema` is where the folder of a draft leaves it out
DRAFTS = {f"draft{number}": f"http://json-schema.org/draft-0{number}/schema#" for number in (3, 4, 6, 7)}


@dataclass(frozen=True, slots=True)
class Instance:
    data: Any
    valid: bool

    def text(self) -> str:
        """Its text as a grammar allows it."""
        return json.dumps(self.data, ensure_ascii=False, separators=SEPARATORS)


@dataclass(frozen=True, slots=True)
class Case:
    """A schema. `name` is that of its file and, if the file has several, its place there."""

    name: str
    schema: dict[str, Any] | bool
    instances: tuple[Instance, ...] = ()

    @property
    def trivial(self) -> bool:
        """Whether it is a boolean or empty: it allows everything or nothing."""
        return isinstance(self.schema, bool) or not self.schema.keys() - {"$schema", "$id", "title", "description"}

    @property
    def remote(self) -> bool:
        """Whether it refers to another document."""
        return any(not target.startswith("#") for target in _references(self.schema))


def read(folder: Path) -> list[Case]:
    """The cases of all files directly in `folder`: a list of groups, as in JSON-Schema-Test-Suite; an object with
    `schema` and `tests`, as in MaskBench; or a schema alone. Raises ValueError for a folder without any."""
    cases = [case for file in sorted(folder.glob("*.json")) for case in _cases(file, DRAFTS.get(folder.name))]
    if not cases:
        raise ValueError(f"{folder} has no file that ends in .json")
    return cases


def sample(cases: Sequence[Case], count: int, seed: int) -> list[Case]:
    """`count` of the cases in random order, or all if there are fewer; no schema twice."""
    distinct = {json.dumps(case.schema, sort_keys=True): case for case in cases}
    return random.Random(seed).sample(list(distinct.values()), min(count, len(distinct)))


def in_order(schema: Any, data: Any) -> Any:
    """`data` with the keys of its objects as `properties` of the schema has them, and all others after them, because
    a grammar fixes their order. References and combinations of schemas are not followed."""
    if not isinstance(schema, dict):
        return data
    if isinstance(data, dict):
        known = schema.get("properties", {})
        others = schema.get("additionalProperties")
        keys = [key for key in known if key in data] + [key for key in data if key not in known]
        return {key: in_order(known.get(key, others), data[key]) for key in keys}
    if isinstance(data, list):
        first = schema.get("prefixItems", ())
        rest = schema.get("items")
        return [in_order(first[n] if n < len(first) else rest, item) for n, item in enumerate(data)]
    return data


def _cases(file: Path, draft: str | None) -> Iterator[Case]:
    content = json.loads(file.read_text())
    if isinstance(content, list):
        for number, group in enumerate(content):
            schema = group["schema"]
            if draft and isinstance(schema, dict):
                schema = {"$schema": draft} | schema
            yield Case(f"{file.stem}/{number}", schema, _instances(group))
    elif "schema" in content and "tests" in content:
        yield Case(file.stem, content["schema"], _instances(content))
    else:
        yield Case(file.stem, content)


def _instances(group: dict[str, Any]) -> tuple[Instance, ...]:
    return tuple(Instance(test["data"], test["valid"]) for test in group["tests"])


def _references(schema: Any) -> Iterator[str]:
    values = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    if isinstance(schema, dict):
        for keyword in ("$ref", "$dynamicRef"):
            if isinstance(target := schema.get(keyword), str):
                yield target
    for value in values:
        yield from _references(value)
