"""`python -m load.bench.gguf_formats --llama-python PATH`: one model in GGUF files of all types.

Prints the size of each file, how its weights are kept, and the perplexity of a fixed text with the weights as stored,
widened, and by llama.cpp; with `--part rates` a lone stream and prompts. Without files, llama.cpp's quantizer makes
them of the default model's.
"""

from __future__ import annotations

import math
import os
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from load.bench import drivers
from load.bench.beside_llama_cpp import LONE, PROMPTS, WARM, Driver, default_gguf
from load.bench.drivers.of_orca import run
from load.bench.drivers.process import Process
from load.bench.engine.perplexity import perplexity, text_ids
from load.options import Options, load_engine, model_folder
from load.report import machine, table
from services.engine.backends.cpu.decoder import CpuDecoder
from services.engine.backends.cpu.packed import PackedMatrix, PackedModel
from services.engine.engine import Engine
from services.files import user_cache

KINDS = (
    *("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_1", "Q5_0"),
    *("Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "Q3_K_M", "Q2_K"),
)
PARTS = ("perplexity", "rates")
HEADS = {
    "perplexity": ["file", "tensors", "MB", "bits of a weight", "as stored", "`auto`", "`dtype`", "llama.cpp"],
    "rates": [
        "file",
        *(f"{each}, {what}" for what in ("lone", "prompt") for each in ("`auto`", "`dtype`", "llama.cpp")),
    ],
}
Weights = Literal["auto", "dtype"]
BOTH: tuple[Weights, Weights] = ("auto", "dtype")


def main(arguments: list[str] | None = None) -> None:
    given = _parser().parse_args(arguments)
    options = Options(device="cpu", dtype=given.dtype, cache_dir=given.cache_dir)
    with ExitStack() as stack:
        llama = None
        if given.llama_python:
            script = Path(drivers.__file__).parent / "llama_cpp_files.py"
            llama = stack.enter_context(Process(str(given.llama_python), str(script)))
        files: list[Path] = given.files or list(_made(llama, given.folder, given.kind or KINDS, given.cache_dir))
        before, rows = os.getloadavg()[0], []
        for file in files:
            print(f"measuring {file.name}", file=sys.stderr, flush=True)
            if given.part == "rates":
                rows.append(_rates(file, options, given.llama_python))
            else:
                rows.append(_perplexities(file, options, llama))
        print(f"{machine()}; {given.dtype}; {llama.about if llama else 'without llama.cpp'}")
        print(f"Load averages of a minute before and after: {before:.1f}, {os.getloadavg()[0]:.1f}.\n")
        print(table(HEADS[given.part], rows), flush=True)


def _made(llama: Process | None, folder: Path | None, kinds: tuple[str, ...], cache_dir: Path) -> Iterator[Path]:
    """The default model's file in all types, written to `folder` unless they are there."""
    if not llama or not folder:
        raise SystemExit("without files, --llama-python and --folder are needed to make them")
    folder.mkdir(parents=True, exist_ok=True)
    source = default_gguf(cache_dir)
    base = source.name.removesuffix("Q4_1.gguf")
    plain = folder / f"{base}F32.gguf"
    for kind in kinds:
        file = folder / f"{base}{kind}.gguf"
        for path, parent, each in ((plain, source, "F32"), (file, plain, kind)):
            if not path.exists():
                llama.ask({"make": [str(parent), f"{path}.part", each]})
                os.replace(f"{path}.part", path)
        yield file


def _perplexities(file: Path, options: Options, llama: Process | None) -> list[Any]:
    """A row of the table of perplexities."""
    import gguf

    kinds = Counter(tensor.tensor_type.name for tensor in gguf.GGUFReader(file).tensors if len(tensor.shape) > 1)
    values, kept, bits = [], "", ""
    for weights in BOTH:
        engine = _load(file, options, weights)
        ids = text_ids(model_folder(_of(file, options)))[: engine.figures.max_model_len]
        value = perplexity(engine, ids)
        assert value is not None, "an engine of one process has all logits"
        values.append(f"{value:.4f}")
        if weights == "auto":
            packed = _packed(engine)
            kept = f"{sum(packed.as_stored.values())} of {sum(kinds.values())}"
            bits = f"{_bits(packed):.2f}"
    theirs = f"{math.exp(llama.ask({'score': [str(file), ids]})):.4f}" if llama else ""
    tensors = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return [_name(file), tensors, f"{file.stat().st_size / 1e6:.0f}", bits, kept, *values, theirs]


def _rates(file: Path, options: Options, llama_python: Path | None) -> list[Any]:
    """A row of the table of rates: tokens per second."""
    found = []
    for weights in BOTH:
        engine = _load(file, options, weights)
        run(engine, [(WARM.prompt, WARM.max_new_tokens)])
        times = [run(engine, [(one.prompt, one.max_new_tokens)])[0] for one in (LONE, *PROMPTS)]
        found.append(_rate(times))
    theirs = ("", "")
    if llama_python:
        script = Path(drivers.__file__).parent / "of_llama_cpp.py"
        with Driver(str(llama_python), str(script), str(file), "separate") as driver:
            theirs = _rate([driver.run([one])[0] for one in (LONE, *PROMPTS)])
    return [_name(file), *(pair[i] for i in (0, 1) for pair in (*found, theirs))]


def _rate(times: list[list[float]]) -> tuple[str, str]:
    """Of the lone stream, with its prompt, and of the prompts."""
    lone, *prompts = times
    tokens = sum(len(prompt.prompt) for prompt in PROMPTS)
    return f"{len(lone) / lone[-1]:.1f}", f"{tokens / sum(one[0] for one in prompts):,.0f}"


def _of(file: Path, options: Options, weights: Weights = "auto") -> Options:
    return Options(str(file), options.device, options.dtype, options.cache_dir, weights)


def _load(file: Path, options: Options, weights: Weights) -> Engine:
    return load_engine(_of(file, options, weights))


def _packed(engine: Engine) -> PackedModel:
    assert isinstance(engine.decoder, CpuDecoder), "only the CPU backend keeps weights as they are stored"
    return engine.decoder._packed


def _bits(packed: PackedModel) -> float:
    """Of a weight of the products in memory, with its share of scales and offsets, on average."""
    matrices = [packed.vocabulary]
    for layer in packed.layers:
        matrices += [layer.qkv, layer.output, layer.up, layer.down]
        if layer.experts:
            matrices += [*layer.experts.up, *layer.experts.down]
    found: list[PackedMatrix] = [matrix for matrix in matrices if matrix]
    return 8 * sum(one.panels.nbytes for one in found) / sum(one.inputs * one.outputs for one in found)


def _name(file: Path) -> str:
    """The type in its name."""
    return file.stem.rpartition(".")[2]


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m load.bench.gguf_formats", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="GGUF files; default: of each --kind")
    parser.add_argument("--llama-python", type=Path, metavar="PATH", help="its python has llama_cpp")
    parser.add_argument("--folder", type=Path, help="where the files of each kind are, or are made")
    parser.add_argument("--kind", action="append", choices=KINDS, help="may be repeated; default: all")
    parser.add_argument("--part", default="perplexity", choices=PARTS)
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--cache-dir", type=Path, default=user_cache(), help="where converted models are kept")
    return parser


if __name__ == "__main__":
    main()
