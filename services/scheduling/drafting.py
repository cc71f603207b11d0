"""Drafting: what may follow a request's last tokens, as its own text and its tenant's recent texts say, and how often
that was right."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterator

RUN = 3  # the shortest suffix that is looked up, in tokens
ID_BITS = 21  # of a token id in the key of such a run; a larger id can only give a worse draft
LONGEST_SUFFIX = 16  # the longest that is compared
PLACES = 8  # earlier places of a run that are compared
AT_ONCE = 4096  # tokens that are indexed in one iteration
REMEMBERED = 1 << 17  # tokens of recent texts that a scheduler keeps, about 30 MB with their index

# The share of guesses that are right is estimated for each kind of draft: from suffixes of up to so many tokens, whose
# first shares are these three; tokens that a grammar forces; and from suffixes found in other texts
LENGTHS = (4, 8, LONGEST_SUFFIX)
FIRST_SHARES = (0.4, 0.6, 0.8, 0.95, 0.2, 0.4, 0.8)
FORCED = len(LENGTHS)
OTHERS = FORCED + 1
FIRST_WEIGHT = 2.0  # guesses that the first share counts as
KEEP = 0.97  # of what earlier guesses count, with each newer draft
RECOVER = 0.98  # of what they count, with each iteration that drafts nothing because of them

Runs = dict[int, tuple["Text", int]]  # by run of tokens: the text that had it last, and where it ends there


class Text:
    """The prompt and the output of a request, with an index of the places where a run of `RUN` tokens ends."""

    __slots__ = ("_last", "_output", "_owner", "_previous", "_prompt", "_recent", "tokens")

    def __init__(
        self, prompt: list[int], output: list[int], recent: Runs | None = None, owner: RecentTexts | None = None
    ) -> None:
        """`output` may grow at its end. `recent` gets the runs of this text, too, and `owner` counts its tokens."""
        self._owner = owner
        self.tokens = array("i", prompt)
        self._prompt, self._output = prompt, output
        self._last: dict[int, int] = {}  # by run: where its last place ends
        self._previous = array("i")  # by the end of a run: where its place before ends, 0 if there is none
        self._recent = recent

    def grow(self) -> None:
        """Take over the newest tokens, and index the runs that end before the last one, as many as an iteration may."""
        tokens, previous, last, recent = self.tokens, self._previous, self._last, self._recent
        newest = self._output[len(tokens) - len(self._prompt) :]
        tokens.extend(newest)
        if self._owner is not None:
            self._owner.length += len(newest)
        for end in range(len(previous), min(len(tokens), len(previous) + AT_ONCE)):
            if end < RUN:
                previous.append(0)
                continue
            key = _key(tokens[end - RUN : end])
            previous.append(last.get(key, 0))
            last[key] = end
            if recent is not None:
                recent[key] = self, end

    @property
    def forgotten(self) -> bool:
        """Whether this text is not one of the recent texts, or not any more."""
        return self._owner is None

    def ends_with(self, tail: array[int], end: int) -> bool:
        """Return whether the indexed run that ends at `end` is the last one of `tail`."""
        return RUN <= end < len(self._previous) and self.tokens[end - RUN : end] == tail[-RUN:]

    def longest(self, tail: array[int], end: int) -> tuple[int, int]:
        """Return the length of the longest suffix of `tail` at a place of its last run, and where it ends. The last of
        the places that are compared ends at `end`. Returns (0, 0) if `end` is 0."""
        tokens, best, found = self.tokens, 0, 0
        for _ in range(PLACES):
            if not end:
                break
            length, most = RUN, min(end, len(tail))
            while length < most and tokens[end - 1 - length] == tail[-1 - length]:
                length += 1
            if length > best:
                best, found = length, end
            end = self._previous[end]
        return best, found

    def last(self, key: int) -> int:
        """Return where the last place of a run ends; 0 if it has none."""
        return self._last.get(key, 0)

    def forget(self) -> None:
        """Remove the runs of this text from those of recent texts."""
        if self._recent is not None:
            for key in self._last:
                if (known := self._recent.get(key)) and known[0] is self:
                    del self._recent[key]
            self._recent = self._owner = None


class RecentTexts:
    """The latest texts that later requests may repeat, by a key that keeps tenants apart."""

    def __init__(self) -> None:
        self._texts = OrderedDict[str, tuple[tuple[str, str], Text]]()  # by request; the first is forgotten first
        self._runs: dict[tuple[str, str], Runs] = {}
        self._counts = Counter[tuple[str, str]]()  # texts by key
        self.length = 0  # tokens of all texts

    def runs(self, key: tuple[str, str]) -> Runs | None:
        """Return the runs of the texts with this key; None if there are no such texts."""
        return self._runs.get(key)

    def add(self, id: str, key: tuple[str, str], prompt: list[int], output: list[int]) -> Text:
        """Return a new text of a request, which is remembered unless its prompt is very long. The oldest texts are
        forgotten for it."""
        self.forget(id)
        if len(prompt) > REMEMBERED // 8:
            return Text(prompt, output)
        self.length += len(prompt)
        while self._texts and self.length > REMEMBERED:
            self.forget(next(iter(self._texts)))
        text = Text(prompt, output, self._runs.setdefault(key, {}), self)
        self._texts[id] = key, text
        self._counts[key] += 1
        return text

    def clear(self) -> None:
        """Forget all texts."""
        for id in list(self._texts):
            self.forget(id)

    def forget(self, id: str) -> None:
        """Forget the text of a request, if it is here."""
        if id not in self._texts:
            return
        key, text = self._texts.pop(id)
        text.forget()
        self.length -= len(text.tokens)
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._runs[key], self._counts[key]


class Shares:
    """How many guesses of each kind of draft were tested, and how many were right. Earlier ones count less."""

    __slots__ = ("right", "tested")

    def __init__(self) -> None:
        self.right = [0.0] * len(FIRST_SHARES)
        self.tested = [0.0] * len(FIRST_SHARES)

    def of(self, kind: int, first: float) -> float:
        """Return the share of right guesses of a kind, which is `first` as long as nothing is known."""
        return (self.right[kind] + FIRST_WEIGHT * first) / (self.tested[kind] + FIRST_WEIGHT)

    def learn(self, kind: int, right: int, guesses: int) -> None:
        """Count the guesses of a draft up to the first wrong one."""
        self.fade(kind, KEEP)
        self.right[kind] += right
        self.tested[kind] += min(right + 1, guesses)

    def fade(self, kind: int, factor: float) -> None:
        """Let what is known of a kind count less."""
        self.right[kind] *= factor
        self.tested[kind] *= factor


class Drafting:
    """What drafts of one request need: its text, recent texts of its tenant, and how often guesses were right."""

    __slots__ = ("_all", "_forced", "_forced_at", "_output", "_own", "_recent", "_repeats", "_text", "kind", "probe")

    def __init__(self, text: Text, output: list[int], recent: Runs | None = None, shares: Shares | None = None) -> None:
        """`output` is that of `text`. `recent`: the runs of texts that the request may repeat. `shares`: those of all
        requests of its tenant, which its own begin with."""
        self._text, self._output, self._recent = text, output, recent
        self._repeats: tuple[Text, int] | None = None  # another text, and how much longer it is up to the same place
        self._forced: list[int] = []
        self._forced_at = -1  # the length of the output that they follow
        self._own, self._all = Shares(), shares or Shares()
        self.kind = 0  # which of FIRST_SHARES the last draft has
        self.probe = 0.0  # seconds that it costs, if it is there to learn from

    def force(self, tokens: list[int]) -> None:
        """Note the tokens that follow the output if its grammar leaves one text only."""
        self._forced, self._forced_at = tokens, len(self._output)

    def find(self, most: int) -> list[int]:
        """Return at most `most` tokens that are likely to follow: those that a grammar forces, or those that followed
        the longest suffix of the text before, there or in a recent text. Returns none if its last `RUN` tokens are new.
        Sets `kind`.
        """
        if self._forced_at == len(self._output):
            self.kind = FORCED
            return self._forced[:most]
        text = self._text
        text.grow()
        tokens = text.tokens
        end = len(tokens)
        if end <= RUN:
            return []
        tail = tokens[-LONGEST_SUFFIX:]
        key = _key(tail[-RUN:])
        best, found = text.longest(tail, text.last(key))
        source = text
        for other, place in self._elsewhere(key, tail, end):
            length, at = other.longest(tail, place)
            if length > best:
                best, found, source = length, at, other
        if not found:
            return []
        self.kind = next(i for i, longest in enumerate(LENGTHS) if best <= longest)
        if source is not text:
            self.kind += OTHERS
            self._repeats = source, found - end
            return source.tokens[found : found + most].tolist()
        guesses = tokens[found : found + most].tolist()
        period = end - found  # a text that repeats itself may go on to do so
        return [guesses[i % period] for i in range(most)]

    def _elsewhere(self, key: int, tail: array[int], end: int) -> Iterator[tuple[Text, int]]:
        """Iterate over other texts with the last run of this one, whose length is `end`, and where it ends there."""
        if self._recent is None:
            return
        if self._repeats:
            other, longer = self._repeats
            if other.forgotten:
                self._repeats = None
            elif other.ends_with(tail, end + longer):
                yield other, end + longer
        if (known := self._recent.get(key)) and known[0] is not self._text:
            yield known

    @property
    def share(self) -> float:
        """The share of guesses of the last draft's kind that are right, as far as it is known."""
        return self._own.of(self.kind, self._all.of(self.kind, FIRST_SHARES[self.kind]))

    @property
    def unsure(self) -> bool:
        """Whether hardly anything is known of this kind of draft of this request, or not any more."""
        return self._own.tested[self.kind] < FIRST_WEIGHT

    def learn(self, right: int, guesses: int) -> None:
        """Learn from the last draft, for this request and for later ones of its tenant."""
        self._own.learn(self.kind, right, guesses)
        self._all.learn(self.kind, right, guesses)

    def decline(self) -> None:
        """Forget some of what is known: nothing is learned while nothing is drafted, and the text goes on."""
        self._own.fade(self.kind, RECOVER)


def _key(run: array[int]) -> int:
    key = 0
    for id in run:
        key = key << ID_BITS | id
    return key
