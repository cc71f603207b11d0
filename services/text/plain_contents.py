"""PlainContents: what users, tools and the assistant have written in a chat never becomes a control token.

A tokenizer reads texts like `<|im_end|>` in a prompt as one token, wherever they come from. Here, a mark breaks such a
text in a content before the chat template is rendered. Afterwards, the text between two control tokens of the template
is tokenized without the mark by a tokenizer that does not know control tokens. All other tokens stay as they are.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tokenizers

TRUSTED = frozenset({"system", "developer"})  # roles whose texts may have control tokens
FIELDS = ("content", "name", "tool_call_id", "reasoning_content")
PRIVATE = range(0xE000, 0xF900)  # characters without a meaning
# of an assistant's text: the places of the marks that the server's parser reads as such, which stay control tokens
OwnMarks = Callable[[str], Iterable[range]]


class PlainContents:
    """Knows the control tokens of a model: its special tokens, and other added tokens that the chat template writes."""

    def __init__(self, raw: Mapping[str, Any], template: str) -> None:
        """`raw`: the content of tokenizer.json. `template`: the source of the chat template."""
        self._plain: tokenizers.Tokenizer | None = None
        self._lead = secrets.token_hex(16)  # begins the names that control tokens have instead
        added = [token for token in raw.get("added_tokens") or () if token["content"].strip()]
        tokens = {t["content"]: t["id"] for t in added if t["special"] or t["content"] in template}
        self._ids = frozenset(tokens.values())
        self._names = dict.fromkeys(sorted(tokens, key=len, reverse=True))
        self._longest = max(map(len, tokens), default=0)
        self._pattern = re.compile("|".join(map(re.escape, self._names))) if tokens else None
        self._begins = frozenset(name[:size] for name in tokens for size in range(1, len(name)))
        self._ends = frozenset(name[size:] for name in tokens for size in range(1, len(name)))

    def protected(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], own_marks: OwnMarks
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
        """`messages` and `tools` with a mark in each text that is spelled like a control token, also where only its
        beginning or end is, except texts of the system and `own_marks`; and the mark, "" if there is none."""
        mark = str(secrets.randbits(128) + (1 << 128))  # which no text contains, and no template changes
        made = [self._message(message, mark, own_marks) for message in messages]
        described = [self._nested(tool, mark) for tool in tools]
        changed = made != list(messages) or described != list(tools)
        return made, described, mark if changed else ""

    def _message(self, message: Mapping[str, Any], mark: str, own_marks: OwnMarks) -> dict[str, Any]:
        made = dict(message)
        if made.get("role") in TRUSTED:
            return made
        for name in FIELDS:
            if isinstance(text := made.get(name), str):
                own = own_marks if name == "content" and made["role"] == "assistant" else None
                made[name] = self._broken(text, mark, own)
        if calls := made.get("tool_calls"):
            made["tool_calls"] = [self._nested(call, mark) for call in calls]
        return made

    def _nested(self, value: Any, mark: str) -> Any:
        """A JSON value with `mark` in its texts and names, but not in words, which templates may compare."""
        match value:
            case str():
                word = value.isidentifier() and not (self._pattern and self._pattern.search(value))
                return value if word else self._broken(value, mark)
            case list():
                return [self._nested(each, mark) for each in value]
            case dict():
                return {self._nested(name, mark): self._nested(each, mark) for name, each in value.items()}
        return value

    def _broken(self, text: str, mark: str, own_marks: OwnMarks | None = None) -> str:
        """`text` with `mark` in each control token that is spelled in it, but for `own_marks`."""
        if self._pattern is None:
            return text
        own: list[range] | None = None

        def broken(found: re.Match[str]) -> str:
            nonlocal own
            if own is None:
                own = list(own_marks(text)) if own_marks else []
            kept = any(found.start() in place for place in own)
            return found[0] if kept else found[0][0] + mark + found[0][1:]

        made = self._pattern.sub(broken, text)
        for whole in dict.fromkeys((text, text.rstrip())):  # a template may trim it
            if size := next((size for size in self._sizes(whole) if whole[-size:] in self._begins), 0):
                place = len(made) - (len(text) - len(whole)) - size + 1
                made = made[:place] + mark + made[place:]
                break
        for whole in dict.fromkeys((text, text.lstrip())):
            if size := next((size for size in self._sizes(whole) if whole[:size] in self._ends), 0):
                place = len(text) - len(whole) + size - 1
                return made[:place] + mark + made[place:] if mark not in made[: place + 1] else made
        return made

    def _sizes(self, text: str) -> range:
        """The lengths that a part of a control token can have in `text`, longest first."""
        return range(min(self._longest - 1, len(text)), 0, -1)

    def encode(self, backend: tokenizers.Tokenizer, text: str, mark: str, add_special_tokens: bool) -> list[int]:
        """The token ids of a rendered `text` with marks, which are not part of it. Raises ValueError if the text has
        all characters of which one stands for the mark."""
        sign = next((chr(code) for code in PRIVATE if chr(code) not in text), "")
        if not sign:
            raise ValueError("the chat has all characters from U+E000 to U+F8FF; leave one of them out")
        marked = text.replace(mark, sign)
        encoding = backend.encode(marked, add_special_tokens=False)
        made: list[int] = []
        held: list[int] = []  # since the last control token
        begin = 0
        for id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if id not in self._ids:
                held.append(id)
                continue
            made += self._between(backend, marked[begin:start], held, sign, begin == 0)
            made.append(id)
            held, begin = [], end
        made += self._between(backend, marked[begin:], held, sign, begin == 0)
        return _around(backend, made) if add_special_tokens else made

    def _between(self, backend: tokenizers.Tokenizer, text: str, ids: list[int], sign: str, first: bool) -> list[int]:
        """The token ids of the text between two control tokens, whose ids with the mark in it are `ids`."""
        if sign not in text:
            return ids
        # some tokenizers read the first text of a prompt in another way
        lead = "" if first else self._lead + next(iter(self._names))
        if self._plain is None:
            self._plain = self._without_control_tokens(json.loads(backend.to_str()))
        found: list[int] = self._plain.encode(lead + text.replace(sign, ""), add_special_tokens=False).ids
        return found[1:] if lead else found

    def _without_control_tokens(self, raw: Mapping[str, Any]) -> tokenizers.Tokenizer:
        """The tokenizer of this tokenizer.json with control tokens by other names, which no text contains. They keep
        their ids, as all tokens do."""

        def renamed(name: str) -> str:
            return f"{self._lead}{name}" if name in self._names else name

        flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
        added = [
            {**token, "content": renamed(token["content"]), **(flags if token["id"] in self._ids else {})}
            for token in raw.get("added_tokens") or ()
        ]
        model = dict(raw["model"])
        if isinstance(model["vocab"], dict):
            model["vocab"] = {renamed(name): id for name, id in model["vocab"].items()}
            if merges := model.get("merges"):
                model["merges"] = [each for each in merges if _merged(each) not in self._names]
        else:
            model["vocab"] = [[renamed(name), score] for name, score in model["vocab"]]
        changed = {**raw, "added_tokens": added, "model": model, "post_processor": None}
        made = tokenizers.Tokenizer.from_str(json.dumps(changed))
        made.no_truncation()
        made.no_padding()
        return made


def _merged(merge: str | list[str]) -> str:
    """What a merge of BPE makes of its two pieces."""
    return merge.replace(" ", "", 1) if isinstance(merge, str) else "".join(merge)


def _around(backend: tokenizers.Tokenizer, ids: list[int]) -> list[int]:
    """`ids` with the tokens that the model expects around a text."""
    around, bare = (backend.encode("a", add_special_tokens=special).ids for special in (True, False))
    place = next(i for i in range(len(around) - len(bare) + 1) if around[i : i + len(bare)] == bare)
    return [*around[:place], *ids, *around[place + len(bare) :]]
