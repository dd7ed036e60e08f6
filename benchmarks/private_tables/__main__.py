"""``python -m benchmarks.private_tables run|report|limits``: see the package's docstring."""

from __future__ import annotations

import argparse
from pathlib import Path

from .contestants import CONTESTANTS
from .run import EPSILONS, Suite, run
from .tables import MOST_ROWS, TABLES


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.private_tables", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="run what is missing in the store")
    runs.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES), metavar="TABLE")
    runs.add_argument("--contestants", nargs="+", default=list(CONTESTANTS), choices=list(CONTESTANTS), metavar="NAME")
    runs.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS), dest="epsilons")
    runs.add_argument("--seeds", type=int, default=5)
    runs.add_argument("--first-seed", type=int, default=0, help="from 100 on for development")
    runs.add_argument("--rows", type=int, default=MOST_ROWS, dest="most_rows", help="of a table, at most")
    runs.add_argument("--retry", action="store_true", help="try again what has failed")
    runs.add_argument("--jobs", type=int, default=2)
    runs.add_argument("--store", type=Path, required=True)
    reports = commands.add_parser("report", help="write the page and the figure")
    reports.add_argument("--store", type=Path, required=True, nargs="+", help="later ones take precedence")
    reports.add_argument("--out", type=Path, default=Path("docs/benchmark.md"))
    bound = commands.add_parser("limits", help="tell noise, clipping and features apart")
    bound.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES), metavar="TABLE")
    bound.add_argument("--epsilon", type=float, default=1.0)
    bound.add_argument("--seeds", nargs="+", type=int, default=[100])
    bound.add_argument("--rows", type=int, default=MOST_ROWS, dest="most_rows")
    options = vars(parser.parse_args(arguments))
    command = options.pop("command")
    if command == "limits":
        from .limits import limits

        for line in limits(*options.values()):
            print(line, flush=True)
        return
    if command == "report":
        from .report import write

        print(write(options["store"], options["out"]))
        return
    store, jobs = options.pop("store"), options.pop("jobs")
    run(Suite(**options), store, jobs)


if __name__ == "__main__":
    main()
