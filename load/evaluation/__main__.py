"""`python -m load.evaluation [--part NAME ...]`: what the server does on this machine, as docs/measurements.md.

The parts run one after the other, each alone on the machine. Each prints its tables and writes its JSON file as soon as
it is done; the page is made of all these files, so parts can be measured one by one, and `--draw` makes it again.
"""

from __future__ import annotations

from pathlib import Path

from load.arguments import add_options, chosen, parser_of
from load.evaluation.bench import SECONDS, Bench, Peers
from load.evaluation.parts import PARTS
from load.evaluation.results import measured, save, write
from load.options import Options, model_folder
from load.server import ROOT
from services.engine.startup import devices
from services.progress import Bar, print_beside

OUT = ROOT / "docs" / "evaluation"
NAMED = "peers"  # the part that needs other servers


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
    if NAMED in (given.part or ()) and not peers:
        parser.error(f"--part {NAMED} needs --vllm-python PATH, or --llama-server PATH with --gguf FILE")
    if bool(peers.llama_server) != bool(peers.gguf):
        parser.error("--llama-server PATH and --gguf FILE belong together")
    if not given.draw:
        folder = model_folder(options)  # downloads it before anything is measured
        device = devices.name(devices.choose_device(options.settings))
        model = f"{folder.name} in {options.weights_dtype} on {device}"
        bench = Bench(options, given.seconds, peers)
        parts = given.part or [name for name in PARTS if name != NAMED or peers]
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
