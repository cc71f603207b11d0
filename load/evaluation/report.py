"""The plots and the Markdown of an evaluation, made of its JSON files alone."""

from __future__ import annotations

from pathlib import Path

from load.bench.figures import Figures, cell
from load.evaluation import parts
from load.evaluation.results import Result, read
from load.plots import draw
from load.report import table

REPORT = "results.md"


def write(folder: Path, beside: Path) -> Path:
    """Draw all plots of the results in `folder`, and write the tables, with those of `beside` in brackets."""
    results, earlier = read(folder), read(beside)
    sections = [
        "# Results of the evaluation",
        "Written by `python -m load.evaluation`; [what each part shows](README.md).",
    ]
    for name, part in parts.known().items():
        if name in results:
            files = part.plots(results[name].found)
            for file, panels in files.items():
                draw(folder / f"{file}.png", panels, f"{results[name].model}; {results[name].machine}")
            sections.append(section(part.HELP, results[name], earlier.get(name), list(files)))
    written = folder / REPORT
    written.write_text("\n\n".join(sections) + "\n")
    return written


def section(about: str, result: Result, earlier: Result | None, plots: list[str]) -> str:
    """A part: its plots, where the figures come from, and its tables."""
    lines = [f"## {result.part}", f"{about[0].upper()}{about[1:]}.", result.about]
    if earlier:
        lines.append(f"In brackets: the run before, {earlier.about}")
    lines += [f"![{about}]({plot}.png)" for plot in plots]
    lines += tables(result.figures, earlier.figures if earlier else {})
    return "\n\n".join(lines)


def tables(figures: Figures, earlier: Figures) -> list[str]:
    """Each table with its title. A cell has the figure and, in brackets, the earlier one if there is one. Columns of
    whole numbers have no decimals."""
    found = []
    for title, rows in figures.items():
        columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
        before = earlier.get(title, {})
        counts = {name for name in columns if all(cells.get(name, 0.0).is_integer() for cells in rows.values())}
        body = []
        for row, cells in rows.items():
            pairs = [(cells.get(name), before.get(row, {}).get(name), name in counts) for name in columns]
            body.append([row, *(_cell(*pair) for pair in pairs)])
        found.append(f"{title}:\n\n{table(['', *columns], body)}")
    return found


def _cell(now: float | None, before: float | None, count: bool) -> str:
    shown, earlier = ("-" if value is None else f"{value:,.0f}" if count else cell([value]) for value in (now, before))
    return shown if before is None else f"{shown} ({earlier})"
