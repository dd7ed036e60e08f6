"""``diff2 budget``: what all runs on the same records cost together, and a limit for them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .._numbers import epsilon_text
from .console import emit_json, ending, show_line, show_rows
from .options import Json


def budget(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that holds the runs, at any depth.")],
    epsilon: Annotated[float | None, typer.Option(help="Set this limit for all runs together.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="The delta of the limit; without --epsilon: state the total at this delta.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what all runs in a folder cost together, and set a limit for them.

    All are assumed to use the same records. With --epsilon and --delta the folder becomes a project: diff2 train, fit
    and evaluate then refuse, with exit status 3 and before anything is spent, what would exceed that limit.
    """
    with ending():
        from ..errors import BudgetExceeded, InvalidArgument
        from ..planning.project import set_limit, standing
        from ..privacy import Budget

        if epsilon is not None and delta is None:
            raise typer.BadParameter("give --delta with --epsilon: the delta of the limit")
        if epsilon is not None and delta is not None:
            set_limit(folder, Budget(epsilon, delta))
        elif not folder.is_dir():
            raise InvalidArgument(f"{folder} is not a folder; --epsilon and --delta make it a project")
        found = standing(folder, None if epsilon is not None or delta is None else Budget(1.0, delta).delta)
        document = found.to_json()
        if as_json:
            emit_json(document)
        else:
            rows = [[run["run"], epsilon_text(float(run["epsilon"])), run["state"]] for run in document["runs"]]
            if rows:
                show_rows(f"runs in {folder}", rows, ["run", f"epsilon alone at {found.delta:g}", "state"])
            show_line(_sentence(document), style="bold", wrap=True)
            for note in document["notes"]:
                show_line(note, wrap=True)
        if found.limit is not None and found.epsilon > found.limit:
            raise BudgetExceeded(
                f"the runs in {folder} cost epsilon={epsilon_text(found.epsilon)} at delta={found.delta:g} together, "
                f"the limit is {epsilon_text(found.limit)}"
            )


def _sentence(document: dict[str, Any]) -> str:
    runs, delta = document["runs"], document["delta"]
    limit = "" if document["limit"] is None else f"; the limit is {epsilon_text(float(str(document['limit'])))}"
    if not runs:
        return f"no runs yet{limit}."
    most = max(float(run["epsilon"]) for run in runs)
    count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    total = epsilon_text(float(str(document["epsilon"])))
    text = f"{count}, each at most epsilon {epsilon_text(most)}: together epsilon {total} at delta {delta:g}"
    return f"{text}, for replacing one {document['unit']} in all of them{limit}."
