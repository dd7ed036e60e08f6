"""A first run file for a table: written from the names of its columns, and from no value in it.

Bounds stand as words, which the owner replaces. A file with such a word is refused, and the error lists all of them.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from .._files import AnyPath
from .._validate import nearest, one_of
from ..data.settings import TASKS
from ..errors import InvalidArgument
from ..tables.file_format import FileFormat
from ..tables.files import PARQUET, UNREADABLE, header_names
from ..tables.problems import Problems

OPEN = ("LOW", "HIGH")  # stand for bounds that are to be written


def header_of(path: AnyPath) -> list[str]:
    """Return the names of the columns of a CSV, CSV.gz or Parquet file; nothing else is read."""
    file, problems = Path(path), Problems(str(path))
    try:
        if file.suffix in PARQUET:
            import pyarrow.parquet

            return [str(name) for name in pyarrow.parquet.read_schema(file).names]
        names = header_names(file, FileFormat(), problems)
    except FileNotFoundError:
        raise InvalidArgument(f"no table at {file}") from None
    except ImportError:
        raise InvalidArgument(f"{file} is Parquet, which needs: pip install 'diff2[parquet]'") from None
    except (UnicodeError, *UNREADABLE) as error:
        raise InvalidArgument(f"{file} cannot be read as a table ({type(error).__name__})") from None
    problems.refuse()
    return list(names)


def draft_run_file(files: Sequence[AnyPath], target: str, task: str, *, epsilon: float, delta: float) -> str:
    """Return a commented run file; each file is a client."""
    one_of("task", task, TASKS)
    names = header_of(files[0])
    for other in files[1:]:
        if header_of(other) != names:
            raise InvalidArgument(f"{other} has other columns than {files[0]}; the tables of all clients have the same")
    if target not in names:
        raise InvalidArgument(f"expected target to be a column, got {target!r}{nearest(target, names)}")
    inputs = [name for name in names if name != target]
    bounded = [*inputs, *([target] if task == "regression" else [])]
    low, high = map(json.dumps, OPEN)
    bounds = [f"{_text(name)} = [{low}, {high}]" for name in bounded]
    classes = [] if task == "regression" else ["classes = []  # all possible classes, as everybody knows them"]
    where = [f"files = [{', '.join(_text(str(file)) for file in files)}]  # one table per client"]
    if len(files) == 1:
        where = [f'file = {_text(str(files[0]))}  # one client; for several: client_column = "..."']
    lines = [
        "# What is trained, on which tables, how, and within which budget. Every key: diff2 run-schema.",
        "# Replace LOW and HIGH, see what to expect (diff2 plan), then train (diff2 train).",
        "",
        "[data]",
        *where,
        f"target = {_text(target)}",
        f'task = "{task}"  # or "{next(other for other in TASKS if other != task)}"',
        f"columns = [{', '.join(map(_text, inputs))}]  # numbers only; diff2 fit also takes text, dates and gaps",
        '# group_column = "..."  # protects all records of a person together',
        *classes,
        "",
        "[data.bounds]  # what everybody knows without seeing the records; values outside are moved to the bound",
        *bounds,
        "",
        "[model]",
        "hidden = [10]  # widths of the hidden layers; [] is a linear model",
        "",
        "[algorithm]",
        'name = "diff2"',
        "rounds = 400",
        "restart_interval = 20  # a fresh gradient every 20 rounds, differences in between",
        "clip_gradient = 1.0  # each record's gradient is clipped to this length",
        "clip_smoothness = 3.0  # and its difference to this times the length of the step",
        "",
        "[routine]",
        'name = "gradient_descent"',
        "learning_rate = 0.25",
        "",
        "[privacy]",
        f"epsilon = {epsilon!r}  # what the whole run may cost",
        f"delta = {delta!r}  # well below 1 / number of records",
        "strict = true  # refuse leaks",
    ]
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
