"""Drafting: one request's text, indexed to find what followed its last tokens before, and how often that came again."""

from __future__ import annotations

from array import array

RUN = 3  # the shortest suffix that is looked up, in tokens
ID_BITS = 21  # of a token id in the key of such a run; a larger id can only give a worse draft
LONGEST_SUFFIX = 16  # the longest that is compared
PLACES = 8  # earlier places of a run that are compared
AT_ONCE = 4096  # tokens that are indexed in one iteration

# The share of guesses that are right is estimated for suffixes of up to so many tokens, beginning with this share; the
# last one is that of tokens that a grammar forces
LENGTHS = (4, 8, LONGEST_SUFFIX)
FIRST_SHARES = (0.4, 0.6, 0.8, 0.95)
FORCED = len(LENGTHS)
FIRST_WEIGHT = 2.0  # guesses that the first share counts as
KEEP = 0.97  # of what earlier guesses count, with each newer one
RECOVER = 0.98  # of what they count, with each iteration that drafts nothing because of them


class Drafting:
    """What drafts of one request need: its text with an index, and how often guesses were right."""

    __slots__ = (
        "_forced",
        "_forced_at",
        "_last",
        "_output",
        "_previous",
        "_prompt",
        "_tokens",
        "length",
        "right",
        "tested",
    )

    def __init__(self, prompt: list[int], output: list[int]) -> None:
        """`output` may grow at its end."""
        self._prompt, self._output = prompt, output
        self._tokens = array("i", prompt)
        self._last: dict[int, int] = {}  # by run of tokens: where its last place ends
        self._previous = array("i")  # by the end of a run: where its place before ends, 0 if there is none
        self._forced: list[int] = []
        self._forced_at = -1  # the length of the output that they follow
        self.right = [0.0] * len(FIRST_SHARES)
        self.tested = [0.0] * len(FIRST_SHARES)
        self.length = 0  # which of FIRST_SHARES the last draft has

    def force(self, tokens: list[int]) -> None:
        """Note the tokens that follow the output if its grammar leaves one text only."""
        self._forced, self._forced_at = tokens, len(self._output)

    def find(self, most: int) -> list[int]:
        """Return at most `most` tokens that are likely to follow: those that a grammar forces, or those that followed
        the longest suffix of the text before. Returns none if its last `RUN` tokens are new. Sets `length`.
        """
        if self._forced_at == len(self._output):
            self.length = FORCED
            return self._forced[:most]
        tokens = self._tokens
        tokens.extend(self._output[len(tokens) - len(self._prompt) :])
        self._index()
        end = len(tokens)
        best, found = 0, 0
        place = self._last.get(_key(tokens[-RUN:]), 0) if end > RUN else 0
        for _ in range(PLACES):
            if not place:
                break
            length = RUN
            while length < min(place, LONGEST_SUFFIX) and tokens[place - 1 - length] == tokens[end - 1 - length]:
                length += 1
            if length > best:
                best, found = length, place
            place = self._previous[place]
        if not found:
            return []
        self.length = next(i for i, longest in enumerate(LENGTHS) if best <= longest)
        guesses = tokens[found : found + most].tolist()
        period = end - found  # a text that repeats itself may go on to do so
        return [guesses[i % period] for i in range(most)]

    def _index(self) -> None:
        """Index the runs that end before the last token, as many as an iteration may."""
        tokens, previous, last = self._tokens, self._previous, self._last
        for end in range(len(previous), min(len(tokens), len(previous) + AT_ONCE)):
            if end < RUN:
                previous.append(0)
                continue
            key = _key(tokens[end - RUN : end])
            previous.append(last.get(key, 0))
            last[key] = end

    @property
    def share(self) -> float:
        """The share of guesses of the last draft's length that are right, as far as it is known."""
        first = FIRST_WEIGHT * FIRST_SHARES[self.length]
        return (self.right[self.length] + first) / (self.tested[self.length] + FIRST_WEIGHT)

    def learn(self, right: int, guesses: int) -> None:
        """Count the guesses of the last draft up to the first wrong one."""
        self._fade(KEEP)
        self.right[self.length] += right
        self.tested[self.length] += min(right + 1, guesses)

    def decline(self) -> None:
        """Forget some of what is known: nothing is learned while nothing is drafted, and the text goes on."""
        self._fade(RECOVER)

    def _fade(self, factor: float) -> None:
        self.right[self.length] *= factor
        self.tested[self.length] *= factor


def _key(run: array[int]) -> int:
    key = 0
    for id in run:
        key = key << ID_BITS | id
    return key
