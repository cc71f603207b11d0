"""Suites as files hold them, and what is sampled of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from load.schemas.suites import Case, Instance, in_order, read, sample


def test_groups_and_single_schemas_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "draft4"
    folder.mkdir()
    tests = [{"data": 1, "valid": True, "description": "one"}, {"data": "a", "valid": False}]
    (folder / "type.json").write_text(json.dumps([{"schema": {"type": "integer"}, "tests": tests}]))
    (folder / "whole.json").write_text(json.dumps({"schema": {"type": "integer"}, "tests": tests, "meta": {}}))
    (folder / "alone.json").write_text(json.dumps({"type": "integer"}))
    alone, group, whole = read(folder)
    instances = (Instance(1, True), Instance("a", False))
    assert alone == Case("alone", {"type": "integer"})
    draft = "http://json-schema.org/draft-04/schema#"
    assert group == Case("type/0", {"$schema": draft, "type": "integer"}, instances)
    assert whole == Case("whole", {"type": "integer"}, instances)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no file that ends in \.json"):
        read(tmp_path)


def test_a_sample_has_no_schema_twice_and_follows_the_seed() -> None:
    cases = [Case(str(number), {"minimum": number % 20}) for number in range(40)]
    first = sample(cases, 10, seed=1)
    assert first == sample(cases, 10, seed=1) != sample(cases, 10, seed=2)
    assert len({json.dumps(case.schema) for case in sample(cases, 100, seed=1)}) == 20


@pytest.mark.parametrize(
    ("schema", "trivial", "remote"),
    [
        (True, True, False),
        ({}, True, False),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, True, False),
        ({"type": "integer"}, False, False),
        ({"items": {"$ref": "#/$defs/a"}}, False, False),
        ({"allOf": [{"$ref": "http://localhost:1234/integer.json"}]}, False, True),
    ],
)
def test_trivial_and_remote_schemas_are_known(schema: dict | bool, trivial: bool, remote: bool) -> None:
    case = Case("", schema)
    assert (case.trivial, case.remote) == (trivial, remote)


def test_keys_come_in_the_order_of_the_schema() -> None:
    schema = {
        "properties": {"a": {"properties": {"x": {}, "y": {}}}, "b": {"items": {"properties": {"p": {}, "q": {}}}}},
    }
    data = {"z": 1, "b": [{"q": 1, "p": 2}], "a": {"y": 1, "x": 2}}
    assert Instance(in_order(schema, data), True).text() == '{"a": {"x": 2, "y": 1}, "b": [{"p": 2, "q": 1}], "z": 1}'
    assert in_order(True, data) is data
