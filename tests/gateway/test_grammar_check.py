"""The check of grammars keeps outcomes, and compiles no more than it must."""

from __future__ import annotations

import pytest

from gateway.grammars.check import GrammarCheck
from gateway.grammars.rules import json_rule
from gateway.model import ServedModel
from gateway.tools import Tool, ToolChoice, ToolUse
from services.errors import GrammarError
from services.grammar import Grammars


def test_outcomes_are_kept(model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    check = GrammarCheck(model)
    good, bad = json_rule({"type": "object"}), json_rule({"not": {}})
    first = check.checked(good)
    with pytest.raises(GrammarError) as caught:
        check.checked(bad)
    monkeypatch.setattr(Grammars, "check", lambda *_: pytest.fail("compiled again"))
    assert check.checked(good) == first
    with pytest.raises(GrammarError) as again:
        check.checked(bad)
    assert str(again.value) == str(caught.value)


def test_tools_that_are_too_long_together_are_not_compiled_one_by_one(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Grammars, "check", lambda *_: pytest.fail("compiled"))
    tools = [Tool(f"t{i}", parameters={"description": "x" * 200_000}) for i in range(2)]
    GrammarCheck(model)._check_tools(ToolUse(tools, ToolChoice("required")))


def test_required_properties_are_not_bounded(model: ServedModel) -> None:
    names = [f"p{i}" for i in range(600)]
    GrammarCheck(model).checked(json_rule({"properties": {name: {} for name in names}, "required": names}))
