"""Grammar: asks the real matcher which texts a rule of the tiny model allows."""

from __future__ import annotations

from typing import Any

from gateway.grammars.check import GrammarCheck
from gateway.grammars.response_format import rule_of
from gateway.grammars.rules import Rule
from gateway.model import ServedModel
from gateway.schemas.structured import Constraint, ConstraintKind
from services.errors import GrammarError
from services.grammar import Grammars


class Grammar:
    """Which texts the grammars of the tiny model allow."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.check = GrammarCheck(model)
        self._grammars = Grammars(model.tokenizer.tables, model.info.vocab_size, model.info.eos_token_ids)

    def rule(self, kind: str, value: Any) -> Rule:
        return rule_of(Constraint("field", ConstraintKind(kind), value), self.model.tokenizer.tables)

    def allows(self, rule: Rule, text: str) -> bool:
        matcher = self._grammars.matcher(self.check.checked(rule))
        try:
            matcher.consume(self.model.tokenizer.encode(text))
        except GrammarError:
            return False
        return matcher.complete
