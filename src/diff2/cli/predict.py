"""``diff2 predict``: predictions for new rows, as they are in a file."""

import csv
import os
from pathlib import Path
from typing import Annotated

import typer

from .console import ending, show_line
from .options import Quiet, shown


def predict(
    model_folder: Annotated[Path, typer.Argument(metavar="MODEL", help="The folder that diff2 fit wrote.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV, CSV.gz or Parquet, of any length.")],
    out: Annotated[Path, typer.Option(metavar="FILE.csv", help="Where the predictions go.")],
    id_column: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="Keep this column beside the predictions.")
    ] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Also the probability of each class.")] = False,
    quiet: Quiet = False,
) -> None:
    """Predict for the raw rows of a file that has the columns of the model; other columns are ignored.

    Predictions for private rows are private: the guarantee of the model does not cover them.
    """
    with ending("no predictions were written"):
        from .._progress import progress_bar
        from ..errors import InvalidArgument
        from ..fitting import FittedModel
        from ..tables.kinds import Classes
        from ..tables.streams import stream_table

        model = FittedModel.load(model_folder)
        target = model.schema.target
        if probabilities and not isinstance(target, Classes):
            raise InvalidArgument("--probabilities is for classes; this model predicts numbers")
        if out.exists() and file.exists() and out.samefile(file):
            raise InvalidArgument(f"--out {out} is the table itself; choose another name")
        header = ["prediction"]
        if probabilities and isinstance(target, Classes):
            header += [f"probability of {value}" for value in target.values]
        done, temporary = 0, out.with_name(out.name + ".tmp")
        try:
            with (
                temporary.open("w", encoding="utf-8", newline="") as made,
                progress_bar(show=shown(quiet), label="predicting", unit="rows") as report,
            ):
                writer = csv.writer(made)
                writer.writerow(header if id_column is None else [id_column, *header])
                for frame in stream_table(file, model.schema.file):
                    columns = [model.predict(frame).tolist()]
                    if probabilities:
                        columns += model.predict_proba(frame).T.tolist()
                    if id_column is not None:
                        if id_column not in frame.names:
                            raise InvalidArgument(f"{file} has no column {id_column!r} for --id")
                        texts, places = frame[id_column].texts()
                        columns.insert(0, [texts[place] for place in places])
                    writer.writerows(zip(*columns, strict=True))
                    done += frame.size
                    report(done)
            os.replace(temporary, out)
        finally:
            temporary.unlink(missing_ok=True)
        if not quiet:
            show_line(f"{done:,} predictions are in {out}")
