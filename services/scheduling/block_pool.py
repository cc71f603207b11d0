"""BlockPool: which KV blocks each request holds. It alone counts and places them; `KVCache` is tensors it indexes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens, ids 0 .. num_blocks - 1.

    In the paper's words (section 4.2): num_blocks * block_size is `n_slots`, `held * block_size` is `n_rsrv`.

    A full block may be published under a key that says what it holds (see `prefix.py`). Requests that begin alike
    then hold the same block. One that nobody holds any more keeps its content until its place is needed: those idle
    longest go first, of one request the last blocks first, so that what is left of a prefix can be found.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks > 0, f"{num_blocks = }"
        assert block_size > 0, f"{block_size = }"
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._empty = list(range(num_blocks - 1, -1, -1))  # a stack: the blocks used last are the warmest
        self._idle: dict[int, None] = {}  # published and held by nobody, idle longest first
        self._holders = [0] * num_blocks
        self._tables: dict[str, list[int]] = {}
        self._blocks: dict[bytes, int] = {}  # published ones
        self._keys: dict[int, bytes] = {}  # the same, the other way
        self._unchecked = 0  # blocks placed since the last full check

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._empty) + len(self._idle)

    @property
    def held(self) -> int:
        return self.num_blocks - self.free

    def blocks_for(self, tokens: int) -> int:
        """How many blocks so many tokens take."""
        return -(-tokens // self.block_size)

    def table(self, request: str) -> list[int]:
        """The blocks of a request, in the order of its tokens; none where it holds none."""
        return self._tables.get(request, [])

    def held_by(self, requests: Iterable[str]) -> int:
        """How many blocks are free once these requests have given theirs back."""
        return len(self._only_of(requests))

    def _only_of(self, requests: Iterable[str]) -> set[int]:
        """The blocks that these requests hold and no other does."""
        held = Counter(block for request in requests for block in self._tables.get(request, ()))
        return {block for block, count in held.items() if count == self._holders[block]}

    def find(self, keys: Sequence[bytes]) -> list[int]:
        """The published blocks of the first of `keys`, up to the first that is not there."""
        found = []
        for key in keys:
            block = self._blocks.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def fits(self, shared: Sequence[int], blocks: int, margin: int = 0, ending: Iterable[str] = ()) -> bool:
        """Whether a request could take `blocks` in all, of them the published `shared`, and leave `margin` free, once
        the requests `ending` have given theirs back. What it shares with these does not become free."""
        freed = self._only_of(ending)
        woken = sum(block in self._idle or block in freed for block in shared)
        return blocks - len(shared) + woken + margin <= self.free + len(freed)

    def take(self, request: str, shared: Sequence[int], blocks: int) -> None:
        """Let `request` hold `blocks` in all, first of them the published `shared`. They must fit."""
        assert request not in self._tables, f"{request} holds blocks already"
        for block in shared:
            self._holders[block] += 1
            self._idle.pop(block, None)
        self._tables[request] = list(shared)
        self.extend(request, blocks - len(shared))

    def extend(self, request: str, blocks: int) -> None:
        """Let `request` hold so many more. They must be free."""
        assert blocks <= self.free, f"{blocks} blocks for {request}, {self.free} are free"
        new = [self._pop() for _ in range(blocks)]
        for block in new:
            self._holders[block] = 1
        self._tables[request] += new
        self._unchecked += blocks

    def publish(self, request: str, index: int, key: bytes) -> None:
        """The request's block number `index` is full and holds what `key` says. Another with the same content that
        came earlier stays the one that is found."""
        block = self._tables[request][index]
        if key not in self._blocks and block not in self._keys:
            self._blocks[key] = block
            self._keys[block] = key

    def release(self, request: str) -> int:
        """Take back all blocks of a request; how many it held, which may be none."""
        table = self._tables.pop(request, [])
        for block in reversed(table):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if block in self._keys:
                    self._idle[block] = None
                else:
                    self._empty.append(block)
        return len(table)

    def forget(self, request: str) -> None:
        """Publish no longer what only this request holds: it failed, and the engine erases these blocks."""
        for block in self._tables.get(request, []):
            if self._holders[block] == 1 and (key := self._keys.pop(block, None)):
                del self._blocks[key]

    def _pop(self) -> int:
        if self._empty:
            return self._empty.pop()
        block = next(iter(self._idle))
        del self._idle[block]
        del self._blocks[self._keys.pop(block)]
        return block

    def check_idle(self) -> None:
        """Nothing is held. Looks at each block only after as many were placed: a constant cost a block, and a request
        that comes while a large pool is idle does not wait for it."""
        assert self.free == self.num_blocks, f"{self.held} blocks are held by {list(self._tables)} while all is idle"
        if self._unchecked >= self.num_blocks:
            self.check()

    def check(self) -> None:
        """Every block is empty, idle or held as often as it is in tables; published ones are found under their key."""
        holders = [0] * self.num_blocks
        for table in self._tables.values():
            for block in table:
                holders[block] += 1
        assert holders == self._holders, "a block is lost or shared"
        unheld = [block for block, count in enumerate(holders) if count == 0]
        assert sorted([*self._empty, *self._idle]) == unheld, "a block is lost or shared"
        assert {block: key for key, block in self._blocks.items()} == self._keys, "a block is published wrongly"
        assert self._idle.keys() <= self._keys.keys(), "an idle block cannot be found"
        assert not self._keys.keys() & set(self._empty), "an empty block can be found"
        self._unchecked = 0
