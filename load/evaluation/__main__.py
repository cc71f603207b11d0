"""`python -m load.evaluation [--part NAME ...]`: what the server does on this machine, as docs/measurements.md.

The parts run one after the other, each alone on the machine. Each prints its tables and writes its JSON file as soon as
it is done; the page is made of all these files, so parts can be measured one by one, and `--draw` makes it again.
"""

from __future__ import annotations

from pathlib import Path

from load.arguments import add_options, chosen, parser_of
from load.bench.shapes import FORMATS
from load.evaluation.bench import SECONDS, Bench, Peers
from load.evaluation.parts import PARTS
from load.evaluation.results import measured, save, write
from load.options import Options, model_folder
from load.random_model import GGUF
from load.server import ROOT
from services.engine.startup import devices
from services.progress import Bar, print_beside

OUT = ROOT / "docs" / "evaluation"
NAMED = ("peers", "sizes")  # the parts beside other servers


def main(arguments: list[str] | None = None) -> None:
    parser = parser_of("load.evaluation", __doc__ or "", {name: part.HELP for name, part in PARTS.items()})
    parser.add_argument(
        "--out", type=Path, default=OUT, metavar="FOLDER", help="where JSON and plots go; measurements.md lies beside"
    )
    parser.add_argument("--draw", action="store_true", help="measure nothing: make plots and the page again")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of arrivals at each rate; default {SECONDS:g}")
    for kind in (Options, Peers):
        add_options(parser, kind)
    given = parser.parse_args(arguments)
    options, peers = Options(**chosen(Options, given)), Peers(**chosen(Peers, given))
    if "peers" in (given.part or ()) and not peers:
        parser.error("--part peers needs --vllm-python PATH or --llama-server PATH")
    if options.format and (not options.shape or options.format in FORMATS):
        parser.error(f"--format is of the random weights of --shape, one of {', '.join(GGUF)}")
    if peers.llama_server and not peers.gguf and not options.shape and given.part != ["sizes"]:
        parser.error("--llama-server PATH needs --gguf FILE, or --shape, whose random weights are stored in one")
    if not given.draw:
        folder = model_folder(options)  # downloads it before anything is measured
        device = devices.name(devices.choose_device(options.settings))
        model = f"{folder.name} in {options.weights_dtype} on {device}"
        bench = Bench(options, given.seconds, peers)
        parts = given.part or [name for name in PARTS if name not in NAMED or peers]
        for name in (bar := Bar(parts, unit="parts")):
            bar.set_description_str(name)
            result = measured(name, model, bench)
            save(given.out, result)
            print_beside(result.section(PARTS[name].HELP, []) + "\n")
    page = given.out.parent / "measurements.md"
    write(given.out, page)
    print(f"Plots are in {given.out}, tables in {page}")


if __name__ == "__main__":
    main()
