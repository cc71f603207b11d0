"""Grammars: masks fit what may be consumed, limits hold, and no text ends the process."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gateway.grammars.schema_checks import MOST_OPTIONAL, check_schema
from gateway.grammars.schema_document import SchemaDocument
from services.errors import GrammarError
from services.grammar import Grammars, Matcher
from services.grammar.compiler import SLACK
from services.text import TextTables

EOS = [256, 257]
PIECES = [bytes([byte]) for byte in range(256)]
PIECES += [b"<eos>", b"<end>", b"<tool>", b"", b"ye", b"yes", b'{"', b'": ', b"aa"]
VOCAB = 300  # more logits than tokens


def grammars(vocab: int = VOCAB, eos: list[int] = EOS, slack: int = 1) -> Grammars:
    tables = TextTables(PIECES, frozenset({256, 257, 258}), TextTables(PIECES, frozenset()))
    return Grammars(tables, vocab, eos, slack)


def allowed(matcher: Matcher) -> list[int]:
    bits: list[int] = np.unpackbits(np.frombuffer(matcher.mask(), np.uint8), bitorder="little").nonzero()[0].tolist()
    return bits


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "yes" | "no"',
        'start: "a" "aaaa" /[b-d]*/ ("x" | "yy")',
        "start: /(ye|yes|y)*[0-9]{2}/",
        'start: %json {"type": "object", "properties": {"yes": {"const": [["aa"]]}}, "required": ["yes"]}',
        "start: <tool> /a+/ <tool>",
        'start: "<tool>" /é{2}/',
    ],
)
def test_every_token_of_a_mask_can_be_consumed_and_no_other(grammar: str) -> None:
    generator, made = np.random.default_rng(1), grammars()
    output: list[int] = []
    matcher = made.matcher(grammar)
    for _ in range(12):
        mask = allowed(matcher)
        assert all(id < len(PIECES) and PIECES[id] for id in mask), "ids without bytes are never allowed"
        for id in mask:
            again = made.matcher(grammar)
            again.consume([*output, id])
        assert set(mask) & set(EOS) == (set(EOS) if matcher.complete else set())
        output.append(int(generator.choice(mask)))
        matcher.consume(output[-1:])
        if matcher.ended:
            break
    assert matcher.complete or not matcher.ended


def test_a_token_that_is_not_allowed_is_an_error() -> None:
    matcher = grammars().matcher('start: "yes"')
    with pytest.raises(GrammarError, match="doesn't satisfy the grammar"):
        matcher.consume([ord("n")])


def test_tokens_after_the_end_are_ignored() -> None:
    matcher = grammars().matcher('start: "yes"')
    matcher.consume([261])
    assert matcher.complete
    assert not matcher.ended
    assert allowed(matcher) == EOS
    matcher.consume([257, 3, 3])
    assert matcher.ended


@pytest.mark.parametrize("vocab", [259, 262, 265, 320])
def test_vocabularies_smaller_and_larger_than_the_tokenizer(vocab: int) -> None:
    matcher = grammars(vocab).matcher('start: "yes"')
    assert max(allowed(matcher)) < vocab
    assert 4 * -(-vocab // 32) <= len(matcher.mask())


def test_a_model_without_eos_has_no_grammars() -> None:
    with pytest.raises(GrammarError, match="no EOS token"):
        grammars(eos=[]).matcher('start: "a"')


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("", "Empty grammar"),
        ("start: (", "Expected"),
        ('x: "a"', "no start rule"),
        ("start: missing", "unknown name"),
        ("start: start", "no text of the grammar"),
        ("start: %json false", "Unsatisfiable"),
        ("start: /[a/", "unclosed character class"),
        ('{"grammars": []}', "empty"),
        ('start: "' + "a" * 300_000 + '"', "300,009 bytes; at most 262,144"),
        ('start: "a"' + "\n" * 1_001, "1,001 lines; at most 1,000"),
        ("start: /" + "a?" * 5_001 + "/", "5,001 optional pieces; at most 5,000"),
    ],
)
def test_messages_say_what_is_wrong(grammar: str, message: str) -> None:
    with pytest.raises(GrammarError) as error:
        grammars().matcher(grammar)
    assert message in str(error.value)
    assert "<non-verbose" not in str(error.value)
    assert max(map(len, str(error.value).splitlines())) <= 200


HOSTILE = """
from test_matchers import grammars, GrammarError
made = grammars()
deep = 900
for text in (
    "start: " + "(" * 100_000 + '"a"' + ")" * 100_000,
    "start: /" + "(" * 100_000 + "a" + ")" * 100_000 + "/",
    "start: %json " + '{"items":' * 20_000 + "{}" + "}" * 20_000,
    '{"grammars":' + "[" * 100_000 + "]" * 100_000 + "}",
    "start: r0\\n" + "".join(f"r{i}: r{i + 1}\\n" for i in range(deep)) + f'r{deep}: "a"',
    "start: R0\\n" + "".join(f'R{i}: R{i + 1} "b"\\n' for i in range(deep)) + f'R{deep}: "a"',
    'start: %json {"$defs": {' + ",".join(f'"d{i}": {{"$ref": "#/$defs/d{i + 1}"}}' for i in range(5_000))
    + ', "d5000": {"type": "null"}}, "$ref": "#/$defs/d0"}',
    "start: /((a{1,1000}){1,1000}){1,1000}/",
    'start: "a"{1,1000000}',
    "start: " + " ".join(['"a"'] * 60_000),
):
    try:
        matcher = made.matcher(text)
        for _ in range(3):
            mask = matcher.mask()
            matcher.consume([next(i for i in range(300) if mask[i // 8] >> i % 8 & 1)])
    except GrammarError as error:
        print(str(error)[:80])
print("alive")
"""


def test_no_text_ends_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE], cwd=__file__.rpartition("/")[0], capture_output=True, text=True, timeout=100
    )
    assert done.stdout.endswith("alive\n"), done.stdout + done.stderr


def test_threads_share_a_compiled_grammar() -> None:
    made = grammars()

    def follow(seed: int) -> bytes:
        generator, matcher, output = np.random.default_rng(seed), made.matcher("start: /[a-d]{8}/"), b""
        while not matcher.ended:
            id = int(generator.choice(allowed(matcher)))
            matcher.consume([id])
            output += b"" if id in EOS else PIECES[id]
        return output

    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(follow, range(64)))
    assert all(len(output) == 8 for output in outputs)


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.grammar.compiler.CACHED", 3)
    monkeypatch.setattr("services.grammar.compiler.CACHED_LENGTH", 100)
    made = grammars()
    for number in range(9):
        made.matcher(f'start: "{number}"')
    assert list(made._compiled) == ['start: "6"', 'start: "7"', 'start: "8"']
    made.matcher(f'start: "{"a" * 80}"')
    assert len(made._compiled) == 2


def test_a_check_keeps_nothing_and_bounds_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = grammars()
    made.check('start: "a"')
    assert not made._compiled
    monkeypatch.setattr("services.grammar.compiler.MOST_SECONDS", 0.0)
    with pytest.raises(GrammarError, match="s to compile; at most 0 s are supported"):
        made.check('start: "a"')
    made.matcher('start: "a"')


def follow(matcher: Matcher, text: bytes) -> None:
    for byte in text:
        matcher.mask()
        matcher.consume([byte])


def chain(length: int) -> str:
    rules = [f'x{i}: /[a-z]/ x{(7 * i + 1) % length} | /[a-z]/ x{(3 * i + 2) % length} | ""' for i in range(length)]
    return "start: x0\n" + "\n".join(rules)


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('start: (((("a"{1,50}){1,50}){1,50}){1,50})', b"a" * 60),
        (chain(400), b"a" * 60),
        ('start: %json {"properties": {' + ", ".join(f'"{i}": {{}}' for i in range(600)) + "}}", b'{"'),
    ],
    ids=["counted", "ambiguous", "properties"],
)
def test_a_row_of_the_parser_is_bounded_in_the_engine_too(grammar: str, text: bytes) -> None:
    """Its time is the square of its items. With 8,000 items, a mask of some of these took 3 s."""
    matcher = grammars(slack=SLACK).matcher(grammar)
    with pytest.raises(GrammarError, match=r"max is 2000|limit 20000"):
        follow(matcher, text)


def test_an_object_with_the_most_optional_properties_can_be_followed() -> None:
    names = [f"p{i}" for i in range(MOST_OPTIONAL)]
    schema = {"type": "object", "properties": {name: {"type": "null"} for name in names}, "additionalProperties": False}
    check_schema(SchemaDocument(schema))
    matcher = grammars().matcher("start: %json " + json.dumps(schema))
    follow(matcher, json.dumps({names[0]: None, names[-1]: None}).encode())
    assert matcher.complete
