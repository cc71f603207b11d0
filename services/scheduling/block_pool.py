"""BlockPool: which KV blocks each request holds, and BlockHashes: the names under which equal prefixes are shared."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

HASH_BYTES = 16


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens, with ids 0 .. num_blocks - 1. The engine's `KVCache` has the tensors.

    In the terms of the paper (section 4.2), num_blocks * block_size is `n_slots` and held * block_size is `n_rsrv`.

    A full block can be published under the hash of its content (see `BlockHashes`). Requests that begin with the same
    tokens then hold the same block. An idle block, which is published but not held, keeps its content until it is
    needed for something else. The block that has been idle longest is reused first, and of one request the last block
    before the first, so that the rest of the prefix can still be found.
    """

    def __init__(self, num_blocks: int, block_size: int, cached: Mapping[int, bytes] | None = None) -> None:
        """`cached` are full blocks that the engine has from an earlier owner, with their hashes. They begin as idle
        ones; the first is reused first.
        """
        assert num_blocks > 0, f"{num_blocks = }"
        assert block_size > 0, f"{block_size = }"
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._blocks = {block_hash: block for block, block_hash in (cached or {}).items()}  # published blocks by hash
        self._hashes = {block: block_hash for block_hash, block in self._blocks.items()}  # their hashes by block
        assert all(0 <= block < num_blocks for block in self._hashes), f"the engine has other blocks: {num_blocks = }"
        self._idle: dict[int, None] = dict.fromkeys(self._hashes)  # published and not held, the one idle longest first
        empty = (block for block in range(num_blocks - 1, -1, -1) if block not in self._hashes)
        self._empty = list(empty)  # a stack: the last ones used are the warmest
        self._holders = [0] * num_blocks
        self._tables: dict[str, list[int]] = {}
        self._untaken: dict[int, int] = {}  # by published block: the iteration that fills it, until `take_full`
        self._unchecked = 0  # blocks allocated since the last full check

    @property
    def free(self) -> int:
        """The number of blocks that no request holds."""
        return len(self._empty) + len(self._idle)

    @property
    def held(self) -> int:
        """The number of blocks that requests hold."""
        return self.num_blocks - self.free

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks `tokens` tokens take."""
        return -(-tokens // self.block_size)

    def table(self, request: str) -> list[int]:
        """Return the blocks of a request in the order of its tokens; an empty list if it holds none."""
        return self._tables.get(request, [])

    def held_by(self, requests: Iterable[str]) -> int:
        """Return how many blocks become free when these requests give theirs back."""
        return len(self._only_of(requests))

    def _only_of(self, requests: Iterable[str]) -> set[int]:
        """Return the blocks that these requests hold and no other request does."""
        held = Counter(block for request in requests for block in self._tables.get(request, ()))
        return {block for block, count in held.items() if count == self._holders[block]}

    def find(self, hashes: Sequence[bytes]) -> list[int]:
        """Return the published blocks with these hashes, up to the first hash without a block."""
        found = []
        for block_hash in hashes:
            block = self._blocks.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def fits(self, shared: Sequence[int], blocks: int, margin: int = 0, ending: Iterable[str] = ()) -> bool:
        """Return whether a request could hold `blocks` blocks, including the published `shared`, and leave `margin`
        free, after the requests `ending` have given theirs back. Blocks that it shares with these do not become free.
        """
        freed = self._only_of(ending)
        woken = sum(block in self._idle or block in freed for block in shared)
        return blocks - len(shared) + woken + margin <= self.free + len(freed)

    def allocate(self, request: str, shared: Sequence[int], blocks: int) -> None:
        """Give `request` `blocks` blocks, beginning with the published `shared`. They must fit."""
        assert request not in self._tables, f"{request} holds blocks already"
        for block in shared:
            self._holders[block] += 1
            self._idle.pop(block, None)
        self._tables[request] = list(shared)
        self.extend(request, blocks - len(shared))

    def extend(self, request: str, blocks: int) -> None:
        """Give `request` that many more blocks, which must be free."""
        assert blocks <= self.free, f"{blocks} blocks for {request}, {self.free} are free"
        new = [self._pop() for _ in range(blocks)]
        for block in new:
            self._holders[block] = 1
        self._tables[request] += new
        self._unchecked += blocks

    def publish(self, request: str, index: int, block_hash: bytes, step: int = 0) -> None:
        """Publish block number `index` of the request, which is full after iteration `step`. If another block with the
        same content was published before, `find` still returns that one.
        """
        block = self._tables[request][index]
        if block_hash not in self._blocks and block not in self._hashes:
            self._blocks[block_hash] = block
            self._hashes[block] = block_hash
            self._untaken[block] = step

    def take_full(self, step: int) -> dict[int, bytes]:
        """Return the published blocks that are full after iteration `step`, with their hashes, each only once."""
        if not self._untaken:
            return {}
        full = [block for block, filled_by in self._untaken.items() if filled_by <= step]
        for block in full:
            del self._untaken[block]
        return {block: self._hashes[block] for block in full}

    def touch(self, blocks: Sequence[int]) -> None:
        """Let those of these published blocks that are idle be reused after all other ones."""
        for block in reversed(blocks):
            if block in self._idle:
                del self._idle[block]
                self._idle[block] = None

    def release(self, request: str) -> int:
        """Take back all blocks of a request. Returns how many it held, which may be 0."""
        table = self._tables.pop(request, [])
        for block in reversed(table):
            self._holders[block] -= 1
            if self._holders[block] == 0:
                if block in self._hashes:
                    self._idle[block] = None
                else:
                    self._empty.append(block)
        return len(table)

    def unpublish(self, request: str) -> None:
        """Withdraw the blocks that only this request holds: it failed, and the engine erases them."""
        for block in self._tables.get(request, []):
            if self._holders[block] == 1 and block in self._hashes:
                self._forget(block)

    def forget_all(self) -> None:
        """Withdraw all published blocks, none of which is held."""
        assert not self._tables, f"blocks are held by {list(self._tables)}"
        for block in list(self._hashes):
            self._forget(block)
        self._empty += reversed(self._idle)
        self._idle.clear()

    def _pop(self) -> int:
        if self._empty:
            return self._empty.pop()
        block = next(iter(self._idle))
        del self._idle[block]
        self._forget(block)
        return block

    def _forget(self, block: int) -> None:
        del self._blocks[self._hashes.pop(block)]
        self._untaken.pop(block, None)

    def check_idle(self) -> None:
        """Check that no block is held. Each single block is checked only after as many have been allocated: the cost
        per allocated block is constant, and a request that arrives at a large idle pool does not wait.
        """
        assert self.free == self.num_blocks, f"{self.held} blocks are held by {list(self._tables)} while all is idle"
        if self._unchecked >= self.num_blocks:
            self.check()

    def check(self) -> None:
        """Check that every block is empty, idle, or held as often as it is in tables, and that published blocks are
        found under their hash.
        """
        holders = [0] * self.num_blocks
        for table in self._tables.values():
            for block in table:
                holders[block] += 1
        assert holders == self._holders, "a block is lost or shared"
        unheld = [block for block, count in enumerate(holders) if count == 0]
        assert sorted([*self._empty, *self._idle]) == unheld, "a block is lost or shared"
        assert {block: block_hash for block_hash, block in self._blocks.items()} == self._hashes, (
            "a block is published wrongly"
        )
        assert self._idle.keys() <= self._hashes.keys(), "an idle block cannot be found"
        assert not self._hashes.keys() & set(self._empty), "an empty block can be found"
        assert self._untaken.keys() <= self._hashes.keys(), "a block without a hash is full"
        self._unchecked = 0


class BlockHashes:
    """The hashes of one request's full blocks, computed when they are asked for.

    The keys and values of a token depend on this token and on all tokens before it. A block's hash is therefore a
    digest of the hash before it and of the block's own tokens. The chain begins with `salt`: requests with different
    salts share nothing.
    """

    __slots__ = ("_block_size", "_hashes", "_salt")

    def __init__(self, salt: str, block_size: int) -> None:
        self._salt = blake2b(salt.encode(), digest_size=HASH_BYTES).digest()
        self._block_size = block_size
        self._hashes: list[bytes] = []

    def first(self, count: int, prompt: list[int], output: list[int]) -> list[bytes]:
        """Return the hashes of the first `count` blocks of prompt + output, which must have that many tokens."""
        while len(self._hashes) < count:
            begin = len(self._hashes) * self._block_size
            self._hashes.append(self._digest(_tokens(prompt, output, begin, begin + self._block_size)))
        return self._hashes[:count]

    def _digest(self, tokens: list[int]) -> bytes:
        assert len(tokens) == self._block_size, f"a block of {len(tokens)} tokens"
        before = self._hashes[-1] if self._hashes else self._salt
        return blake2b(before + array("I", tokens).tobytes(), digest_size=HASH_BYTES).digest()


def _tokens(prompt: list[int], output: list[int], begin: int, end: int) -> list[int]:
    """Return `(prompt + output)[begin:end]` without the concatenation."""
    split = len(prompt)
    return prompt[begin:end] + output[max(0, begin - split) : max(0, end - split)]
