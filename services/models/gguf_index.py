"""GgufIndex: where the weights of a converted model lie in its GGUF files, so that they are read there and not copied.

It is a file of the converted folder. The other weights of the model, which the conversion changes, are numbers in
model.safetensors beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services import wire
from services.errors import ModelError, OtherWeights, Unreadable

INDEX = "gguf.index"
# the types of blocks that engine/weights/gguf.py reads; a backend that executes weights as they are stored reads a
# third to a half as many bytes as with bfloat16, others widen them when they are loaded
KINDS = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"})
NUMBERS = frozenset({"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8"})  # types that are not quantised


@dataclass(frozen=True, slots=True)
class Place:
    """Where a matrix is in a file. llama.cpp interleaves the rows of the two halves of a head that are rotated
    together, in some families: `pairs` of rows follow one another then, of which transformers has the first rows before
    the second ones. With 1, all rows are in transformers' order."""

    file: int  # its number
    offset: int  # bytes
    rows: int
    width: int  # bytes of a row
    kind: str  # ggml's type
    pairs: int = 1


@dataclass(frozen=True, slots=True)
class Source:
    """A GGUF file as it was when it was converted."""

    path: str
    size: int  # bytes
    mtime_ns: int
    ctime_ns: int  # changes also where a program resets the other

    @classmethod
    def of(cls, file: Path) -> Source:
        """Raises OSError."""
        stat = file.stat()
        return cls(str(file), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)

    def check(self) -> None:
        """Raise OtherWeights if the file is not what it was."""
        what = f"{self.path}, in which weights of a converted model lie,"
        try:
            now = Source.of(Path(self.path))
        except OSError as error:
            raise OtherWeights(
                f"{what} cannot be read: {error.strerror}; put it back, or serve it where it is now"
            ) from None
        if now != self:
            raise OtherWeights(f"{what} has changed; put it back, or start the server again")


@dataclass(frozen=True, slots=True)
class GgufIndex:
    """`kinds`: ggml's type of each quantised weight of the model, by name, also of those that are numbers now.
    `contents`: the names and hashes of the files of weights that the folder would have if no weight were left where it
    is: the revision of the model is made of them."""

    sources: list[Source]
    places: dict[str, Place]  # by transformers' names
    kinds: dict[str, str]
    contents: list[tuple[str, str]]

    def write(self, folder: Path) -> None:
        (folder / INDEX).write_bytes(wire.pack(self))

    @classmethod
    def read(cls, folder: Path) -> GgufIndex | None:
        """The index of the converted model in `folder`; None for another model. Raises ModelError."""
        try:
            return wire.unpack(cls, (folder / INDEX).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, Unreadable) as error:
            raise ModelError(f"{folder / INDEX} cannot be read: {error}") from error
