"""BadWords: which tokens would complete a word that the output of a request must not contain."""

from __future__ import annotations

from collections.abc import Iterable


class BadWords:
    """Words as token ids, each at least one. A word of one token is never sampled. The last token of a longer one is
    not sampled where the output ends with the others (vLLM's `bad_words`); the prompt does not count.
    """

    __slots__ = ("_by_last", "single")

    def __init__(self, words: Iterable[tuple[int, ...]]) -> None:
        self.single: set[int] = set()
        self._by_last: dict[int, list[tuple[list[int], int]]] = {}  # by the last but one token: beginning, last token
        for *beginning, last in words:
            if beginning:
                self._by_last.setdefault(beginning[-1], []).append((beginning, last))
            else:
                self.single.add(last)

    def completing(self, token_ids: list[int], num_prompt_tokens: int) -> set[int]:
        """The tokens that must not come next because of the output so far; `token_ids` are prompt + output."""
        found = self._by_last.get(token_ids[-1], ()) if len(token_ids) > num_prompt_tokens else ()
        return {
            last
            for beginning, last in found
            if len(token_ids) - len(beginning) >= num_prompt_tokens and token_ids[-len(beginning) :] == beginning
        }
