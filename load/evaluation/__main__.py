"""`python -m load.evaluation [--part NAME ...]`: the evaluation of docs/evaluation, its plots and tables.

The parts run one after the other, each alone on the machine. Each writes its JSON file as soon as it is done; plots and
tables are made of all JSON files of the folder, so parts can be measured one by one, and `--draw` makes them again.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from load.evaluation import parts, report
from load.evaluation.bench import Bench
from load.evaluation.results import EARLIER, Clock, save
from load.options import Options, add_model, add_numerics, dtype_of, model_folder
from load.options import parser as part_parser
from load.server import ROOT
from services.progress import Bar, print_beside

OUT = ROOT / "docs" / "evaluation"
SECONDS = 12.0
VLLM = "vllm"


def main(arguments: list[str] | None = None) -> None:
    given = _parser().parse_args(arguments)
    known = parts.known()
    if VLLM in (given.part or ()) and not given.vllm_python:
        raise SystemExit(f"--part {VLLM} needs --vllm-python PATH, an interpreter that has vLLM")
    if not given.draw:
        options = Options(given.model, given.device, given.dtype, given.cache_dir)
        model = f"{model_folder(options).name} in {dtype_of(options)}"  # downloads it before anything is measured
        bench = Bench(options, given.seconds, given.vllm_python)
        chosen = [name for name in known if name in (given.part or known) and (name != VLLM or given.vllm_python)]
        for name in (bar := Bar(chosen, unit="parts")):
            bar.set_description_str(name)
            clock = Clock()
            result = clock.result(name, model, given.seconds, known[name].measure(bench))
            save(given.out, result)
            print_beside(report.section(known[name].HELP, result, None, []) + "\n")
    print(f"Plots and tables: {report.write(given.out, given.compare or given.out / EARLIER)}")


def _parser() -> ArgumentParser:
    parser = part_parser("load.evaluation", __doc__ or "", {name: part.HELP for name, part in parts.known().items()})
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER", help="where JSON, plots and tables go")
    parser.add_argument(
        "--compare", type=Path, metavar="FOLDER", help="whose figures are put beside; default: the run before"
    )
    parser.add_argument("--draw", action="store_true", help="measure nothing: make plots and tables of the JSON files")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of arrivals at each rate; default {SECONDS:g}")
    parser.add_argument("--vllm-python", type=Path, metavar="PATH", help="an interpreter that has vLLM")
    add_model(parser)
    add_numerics(parser)
    return parser


if __name__ == "__main__":
    main()
