"""Each number with a unit of time, rate, ratio or memory in the documents is accounted for in docs/numbers.toml.

An entry of the list is a page, a claim, and where its numbers are from. The claim is a part of the page's text that
stands there once and has numbers with a unit. They are from one of:

- `constant`: `FILE:NAME` or `FILE:Class.NAME` in the code, such as the default of a setting, or a list of these. Their
  values are those of the claim, in its order. `unit` is theirs, if they are not seconds, bytes or plain numbers.
- `command`: what prints the number, or a file of tests that shows it. test_document_commands.py looks for it.
- `source`: where a number of another system, of a standard or of the paper is from.

Results of measurements belong into pages that programs write, or into dated files in docs/evaluation; both may have any
numbers. So may code.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
WRITTEN = {"measurements.md", "settings.md", "models.md"}  # by programs
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name not in WRITTEN)]
LIST: dict[str, dict[str, Mapping[str, Any]]] = tomllib.loads((ROOT / "docs" / "numbers.toml").read_text())

# written parts, code, and targets of links
NO_PROSE = re.compile(
    r"<!-- [a-z]+ -->.*?<!-- end.*?-->|^```.*?^```$|(?<!`)(`+)(?!`)(?:(?!\n\n).)+?\1(?!`)|\]\([^)\s]*\)",
    re.DOTALL | re.MULTILINE,
)
WORDS = ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
TIMES = {"microsecond": 1e-6, "millisecond": 1e-3, "second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}
UNITS = TIMES | {f"{unit}s": seconds for unit, seconds in TIMES.items()}
UNITS |= {"ns": 1e-9, "µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
UNITS |= {"byte": 1, "bytes": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
UNITS |= {"%": 0.01, "percent": 0.01, "times": 1.0}
DIGITS = r"\d[\d,]*(?:\.\d+)?"
RATE = r"[A-Za-zµ]+/(?:s|token|request|hour|minute)"
PER = r"\s+(?:a|per|each)\s+(?:second|minute|hour)"
UNIT = "|".join([RATE, *map(re.escape, sorted(UNITS, key=len, reverse=True))])
NUMBER = re.compile(
    rf"(?<![\w.,/-])({DIGITS})(?:(?:\s+to\s+|–|-|\s+and\s+)({DIGITS}))?"
    rf"(?:(?:-|\s*)({UNIT})(?![\w/])(?!{PER})|(?<=\d)[x×](?!\w| \d)|\s+\w+{PER})"
)
IN_WORDS = re.compile(rf"\b(half\s+an?|{'|'.join(WORDS)})\s+(?:({'|'.join(TIMES)})s?\b|times\s+(?:as|the|more|less)\b)")
WITH_UNIT = re.compile(rf"(?:^|[ ,(])(?:{UNIT})(?:$|[ ,):])")  # the heading of a column


@dataclass(frozen=True, slots=True)
class Number:
    """Values in seconds, bytes or as they are (two of a range), and the place in the text of a page."""

    text: str
    values: tuple[float, ...]
    begin: int
    end: int


def prose(text: str) -> str:
    """`text` with `~` in place of all that is not prose."""
    return NO_PROSE.sub(lambda found: re.sub(r"[^\n]", "~", found[0]), text)


def numbers(text: str) -> list[Number]:
    """The numbers with a unit in the prose of `text`."""
    kept, found = prose(text), list[Number]()
    for match in NUMBER.finditer(kept):
        factor = UNITS.get(match[3], 1.0)
        values = tuple(float(digits.replace(",", "")) * factor for digits in match.group(1, 2) if digits)
        found.append(Number(match[0], values, *match.span()))
    for match in IN_WORDS.finditer(kept):
        value = WORDS.index(match[1]) + 2 if match[1] in WORDS else 0.5
        found.append(Number(match[0], (value * TIMES.get(match[2], 1.0),), *match.span()))
    return sorted([*found, *_cells(kept)], key=lambda number: number.begin)


def _cells(text: str) -> Iterator[Number]:
    """The numbers in columns of tables whose heading has a unit."""
    heads, begin = list[bool](), 0
    for line in text.splitlines(keepends=True):
        cells = line.strip().strip("|").split("|") if line.lstrip().startswith("|") else []
        if not cells:
            heads = []
        elif not heads:
            heads = [bool(WITH_UNIT.search(cell.strip())) for cell in cells]
        else:
            at = begin + line.index("|") + 1
            for cell, has_unit in zip(cells, heads, strict=False):
                match = re.fullmatch(rf"\s*({DIGITS})\s*", cell) if has_unit else None
                if match:
                    yield Number(match[1], (float(match[1].replace(",", "")),), at + match.start(1), at + match.end(1))
                at += len(cell) + 1
        begin += len(line)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("it waits 10\n  s, `at most 3 s`, or [2](a.md#5-s) or 6 `h` s", {"10\n  s": [10.0]}),
        ("```\n5 s\n```\n20-30 ms", {"20-30 ms": [0.02, 0.03]}),
        (
            "1 to 1,200 MiB at 90%, 1.5 times",
            {"1 to 1,200 MiB": [2**20, 1200 * 2**20], "90%": [0.9], "1.5 times": [1.5]},
        ),
        (
            "13 times a second, 4 requests per second, 9 tokens/s",
            {"13 times a second": [13.0], "4 requests per second": [4.0], "9 tokens/s": [9.0]},
        ),
        (
            "half a second, two minutes, three times as long, 2x as fast",
            {"half a second": [0.5], "two minutes": [120.0], "three times as": [3.0], "2x": [2.0]},
        ),
        ("| a | time, ms |\n| --- | --- |\n| 3 | 4.5 |\n\n| 6 |", {"4.5": [4.5]}),
        ("128 x 128, 2x2, 3 seats, version 2.0, a second engine", {}),
    ],
)
def test_numbers_with_a_unit_are_found(text: str, found: dict[str, list[float]]) -> None:
    assert {number.text: pytest.approx(number.values) for number in numbers(text)} == found


# --- the list -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    page: str
    claim: str
    about: Mapping[str, Any]

    def places(self, text: str) -> list[tuple[int, int]]:
        """Where the claim stands in `text`, whose lines may break anywhere in it."""
        words = r"\s+".join(re.escape(word) for word in self.claim.split())
        return [match.span() for match in re.finditer(words, text)]


ENTRIES = [Entry(page, claim, about) for page, claims in LIST.items() for claim, about in claims.items()]


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_each_number_of_a_page_is_accounted_for(page: Path) -> None:
    text = page.read_text()
    places = [place for entry in ENTRIES if entry.page == _name(page) for place in entry.places(text)]
    missing = [
        f"{_name(page)}:{text.count(chr(10), 0, number.begin) + 1}: {number.text}"
        for number in numbers(text)
        if not any(begin <= number.begin and number.end <= end for begin, end in places)
    ]
    assert missing == [], "not in docs/numbers.toml"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.page}: {entry.claim}")
def test_each_entry_of_the_list_holds(entry: Entry) -> None:
    text = (ROOT / entry.page).read_text()
    places = entry.places(text)
    assert len(places) == 1, f"the claim stands on {entry.page} {len(places)} times, not once"
    [(begin, end)] = places
    values = [
        value for number in numbers(text) if begin <= number.begin and number.end <= end for value in number.values
    ]
    assert values, "the claim has no number with a unit"
    match dict(entry.about):
        case {"constant": names, **rest} if rest.keys() <= {"unit"}:
            factor = UNITS[rest.get("unit", "times")]
            each = [names] if isinstance(names, str) else names
            assert values == pytest.approx([value * factor for name in each for value in constants(name)])
        case {"command": str(command), **rest} if not rest:
            assert re.match(r"python -m |make |tests/\S+/test_\w+\.py$", command), command
        case {"source": str(source), **rest} if not rest:
            assert source
        case about:
            pytest.fail(f"neither a constant nor a command nor a source: {about}")


# --- constants ----------------------------------------------------------------------------------------------


def constants(name: str) -> list[float]:
    """The value of `FILE:NAME` or `FILE:Class.NAME`, or the values of a tuple.

    Nothing is imported for it, because much of the code imports torch or Ray.
    """
    value = _value(*name.split(":"))
    return list(value) if isinstance(value, tuple) else [value]


def _value(file: str, name: str) -> Any:
    text = (ROOT / file).read_text()
    if not file.endswith(".py"):
        [product] = re.findall(rf"\b{name}\s*[=:]\s*([\d._]+(?: \* \d+)*)", text)
        return eval(product)
    body, (*outer, last) = ast.parse(text).body, name.split(".")
    for part in outer:
        [body] = [node.body for node in body if isinstance(node, ast.ClassDef) and node.name == part]
    for node in body:
        match node:
            case ast.Assign(targets=[target], value=expression) | ast.AnnAssign(target=target, value=expression):
                names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
                if last in names and expression:
                    value = eval(compile(ast.Expression(expression), file, "eval"))
                    return value[names.index(last)] if isinstance(target, ast.Tuple) else value
    raise KeyError(f"{file} assigns no {name}")
