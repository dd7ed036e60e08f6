"""A table in a file, a few thousand records at a time, for tables that do not fit into memory.

Cells mean what they mean to :func:`diff2.tables.files.read_tables`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from os import PathLike
from pathlib import Path
from typing import Any

from .cell_column import Cells, objects
from .file_format import FileFormat
from .files import PARQUET, UNREADABLE, csv_lines, header_names, opened_text
from .frames import Frame, as_frame
from .problems import Problems
from .rows import CHUNK

ROWS = 16 * CHUNK


def stream_table(path: str | PathLike[str], format: FileFormat | None = None, rows: int = ROWS) -> Iterator[Frame]:
    """Yield the records of a CSV, CSV.gz or Parquet file in order; a table without records gives one empty frame."""
    file = Path(path)
    problems = Problems(str(file))
    if not file.is_file():
        problems.add(str(file), "does not exist", "check the name")
        problems.refuse()
    found = _parquet(file, problems, rows) if file.suffix.lower() in PARQUET else _csv(file, format, problems, rows)
    try:
        yield from found
    except UnicodeError:
        problems.add(str(file), "is not text in the encoding of the schema", "write it in that encoding")
    except UNREADABLE:  # the error's own text may quote a record
        problems.add(str(file), "is not a readable table", "check the file, or write it again")
    problems.refuse()


def _csv(file: Path, format: FileFormat | None, problems: Problems, rows: int) -> Iterator[Frame]:
    declared = format or FileFormat()
    names = header_names(file, declared, problems)
    problems.refuse()
    with opened_text(file, declared) as text:
        lines = csv_lines(text, declared)
        next(lines)
        part, first = list(islice(lines, rows)), True
        while part or first:
            columns: list[Any] = list(zip_longest(*(line[: len(names)] for line in part)))
            columns += [[None] * len(part)] * (len(names) - len(columns))
            yield Frame(names, tuple(_texts(column) for column in columns), len(part))
            part, first = list(islice(lines, rows)), False


def _parquet(file: Path, problems: Problems, rows: int) -> Iterator[Frame]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        problems.add(str(file), "needs pyarrow to be read", "install it: pip install 'diff2[parquet]'")
        return
    try:
        table = parquet.ParquetFile(file)
        if not table.metadata.num_rows:
            yield as_frame(table.read())
        for batch in table.iter_batches(rows):
            yield as_frame(batch)
    except pyarrow.ArrowException:
        problems.add(str(file), "is not a readable Parquet table", "check the file, or write it again")


def _texts(column: Sequence[str | None]) -> Cells:
    """Return texts, held by Arrow where it is there: it reads numbers much faster."""
    try:
        import pyarrow
    except ImportError:
        return Cells(objects(column))
    return Cells(pyarrow.chunked_array([pyarrow.array(column, pyarrow.string())]))
