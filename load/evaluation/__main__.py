"""`python -m load.evaluation [--part NAME ...]`: what the server does on this machine, as docs/measurements.md.

The parts run one after the other, each alone on the machine. Each prints its tables and writes its JSON file as soon as
it is done; the page is made of all these files, so parts can be measured one by one, and `--draw` makes it again.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from load.evaluation import parts
from load.evaluation.bench import Bench, Peers
from load.evaluation.results import Clock, save, write
from load.options import Options, add_model, add_numerics, dtype_of, model_folder
from load.options import parser as part_parser
from load.server import ROOT
from services.progress import Bar, print_beside

OUT = ROOT / "docs" / "evaluation"
SECONDS = 12.0
PEERS = "peers"


def main(arguments: list[str] | None = None) -> None:
    given = _parser().parse_args(arguments)
    known, peers = parts.known(), Peers(given.vllm_python, given.llama_server, given.gguf)
    named = bool(given.vllm_python or given.llama_server)
    if PEERS in (given.part or ()) and not named:
        raise SystemExit(f"--part {PEERS} needs --vllm-python PATH, or --llama-server PATH with --gguf FILE")
    if bool(given.llama_server) != bool(given.gguf):
        raise SystemExit("--llama-server PATH and --gguf FILE belong together")
    if not given.draw:
        options = Options(given.model, given.device, given.dtype, given.cache_dir)
        model = f"{model_folder(options).name} in {dtype_of(options)}"  # downloads it before anything is measured
        bench = Bench(options, given.seconds, peers)
        chosen = [name for name in known if name in (given.part or known) and (name != PEERS or named)]
        for name in (bar := Bar(chosen, unit="parts")):
            bar.set_description_str(name)
            clock = Clock()
            result = clock.result(name, model, given.seconds, known[name].measure(bench))
            save(given.out, result)
            print_beside(result.section(known[name].HELP, []) + "\n")
    page = given.out.parent / "measurements.md"
    write(given.out, page)
    print(f"Plots are in {given.out}, tables in {page}")


def _parser() -> ArgumentParser:
    parser = part_parser("load.evaluation", __doc__ or "", {name: part.HELP for name, part in parts.known().items()})
    parser.add_argument(
        "--out", type=Path, default=OUT, metavar="FOLDER", help="where JSON and plots go; measurements.md lies beside"
    )
    parser.add_argument("--draw", action="store_true", help="measure nothing: make plots and the page again")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of arrivals at each rate; default {SECONDS:g}")
    parser.add_argument("--vllm-python", type=Path, metavar="PATH", help="an interpreter that has vLLM")
    parser.add_argument("--llama-server", type=Path, metavar="PATH", help="llama.cpp's server; needs --gguf")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="what llama.cpp's server and ours beside it serve")
    add_model(parser)
    add_numerics(parser)
    return parser


if __name__ == "__main__":
    main()
