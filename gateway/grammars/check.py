"""GrammarCheck: the grammar of a request's output, refused if an engine could not run it."""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from threading import Lock

from gateway.answer.reading import PLAIN, Reading
from gateway.errors import ApiError, Kind
from gateway.grammars.anchors import check_groups
from gateway.grammars.harmony import harmony_rule
from gateway.grammars.response_format import rule_of
from gateway.grammars.rules import Rule, json_rule, with_reasoning
from gateway.grammars.schema_checks import check_multiples
from gateway.grammars.tools import tool_rule
from gateway.model import ServedModel
from gateway.schemas.generation import GenerationFields
from gateway.tools import ToolUse
from services.errors import GrammarError
from services.grammar import Grammars
from services.grammar.compiler import LONGEST

KNOWN = 1024  # outcomes
MAX_REASON = 400  # characters
CONTRADICTING = ("ignore_eos", "min_tokens")  # the end of the grammar is the end of the output


class GrammarCheck:
    """Compiles the grammars of requests, each once. Can be used by several threads."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._grammars: Grammars | None = None  # made for the first grammar: it takes a second for a large vocabulary
        self._outcomes: OrderedDict[bytes, str] = OrderedDict()  # hash of a grammar -> what is wrong, if anything
        self._lock = Lock()

    def grammar_of(self, fields: GenerationFields, reading: Reading = PLAIN) -> str:
        """The grammar of the output as `SamplingParams.grammar` has it; empty if the output is free. `reading`: how the
        answer is read. The first call for a grammar takes 0.3 ms to seconds. Raises ApiError naming the field and the
        reason."""
        constraint, use = fields.constraint, fields.tool_use
        param = "tools" if constraint is None or use.required else constraint.param
        tables = self._model.tokenizer.tables
        try:
            for tool in use.callable:
                check_groups(tool.pattern)
            answer = None if constraint is None else rule_of(constraint, tables)
            form, opened = reading.reasoning, reading.reasoning_open
            if reading.harmony:
                rule = harmony_rule(use, tables, answer, opened)
            else:
                rule = tool_rule(use, reading.tool_parser, tables, answer, None if opened else form)
            if rule is None:
                return ""
            for name in CONTRADICTING:
                if getattr(fields, name):
                    text = f"'{name}' is not allowed with '{param}': the grammar determines where the output ends."
                    raise ApiError(Kind.INVALID, text, name)
            if form is not None and not reading.harmony:
                rule = with_reasoning(rule, tables, opened, form)
            return self.checked(rule)
        except GrammarError as error:
            self._check_tools(use)
            raise ApiError(Kind.INVALID, f"Invalid '{param}': {readable(str(error))}.", param) from None

    def _check_tools(self, use: ToolUse) -> None:
        """Raises ApiError naming a tool whose schema does not compile alone. Schemas that are too long together are not
        compiled: each of them could take as long as the longest grammar."""
        tools = [tool for tool in use.callable if use.required or tool.strict] if use.calls else []
        if sum(len(json.dumps(tool.schema)) for tool in tools) <= LONGEST:
            for tool in tools:
                try:
                    self.checked(json_rule(tool.schema))
                except GrammarError as error:
                    what = "format" if tool.custom else "parameters"
                    text = f"the {what} of '{tool.name}' cannot be enforced: {readable(str(error))}"
                    raise ApiError(Kind.INVALID, f"Invalid 'tools': {text}.", "tools") from None

    def checked(self, rule: Rule) -> str:
        """The grammar of an output that is a text of `rule`. Raises GrammarError if it does not compile within the
        limits. Outcomes are kept, so that neither a good grammar nor a bad one costs anything the second time."""
        grammar = rule.grammar()
        key = hashlib.sha256(grammar.encode()).digest()
        with self._lock:
            reason = self._outcomes.get(key)
        if reason is None:
            reason = self._compile(rule, grammar)
            with self._lock:
                self._outcomes[key] = reason
                while len(self._outcomes) > KNOWN:
                    self._outcomes.popitem(last=False)
        if reason:
            raise GrammarError(reason)
        return grammar

    def _compile(self, rule: Rule, grammar: str) -> str:
        """What is wrong with a grammar; empty if nothing is."""
        try:
            for text in (rule.expression, *(lark for _, lark in rule.grammars)):
                check_multiples(text)
            self._compiler().check(grammar)
        except GrammarError as error:
            return str(error)
        return ""

    def _compiler(self) -> Grammars:
        with self._lock:
            if self._grammars is None:
                info, tables = self._model.info, self._model.tokenizer.tables
                self._grammars = Grammars(tables, info.vocab_size, info.eos_token_ids, slack=1)
            return self._grammars


def readable(error: str) -> str:
    """An error of llguidance on one line, without the text of the grammar, most of which the client has not written."""
    first, *others = [line.strip() for line in error.strip().splitlines()] or [""]
    kept = [re.sub(r"^(at )?\d+\(\d+\): ", "", first), *(line for line in others if line.startswith("error: "))]
    return " ".join(kept)[:MAX_REASON].rstrip(".")
