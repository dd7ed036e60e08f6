"""A table in a file, a few thousand records at a time, for tables that do not fit into memory.

Cells mean what they mean to :func:`diff2.tables.files.read_tables`.
"""

from collections.abc import Iterator
from pathlib import Path

from .._files import AnyPath
from .file_format import FileFormat
from .files import PARQUET, UNREADABLE, csv_frames, header_names, parquet_frames
from .frames import Frame
from .problems import Problems
from .rows import CHUNK

ROWS = 16 * CHUNK


def stream_table(path: AnyPath, format: FileFormat | None = None, rows: int = ROWS) -> Iterator[Frame]:
    """Yield the records of a CSV, CSV.gz or Parquet file in order; a table without records gives one empty frame."""
    file, declared = Path(path), format or FileFormat()
    problems = Problems(str(file))
    if not file.is_file():
        problems.add(str(file), "does not exist", "check the name")
        problems.refuse()
    try:
        if file.suffix.lower() in PARQUET:
            yield from parquet_frames(file, problems, rows)
        else:
            names = header_names(file, declared, problems)
            problems.refuse()
            yield from csv_frames(file, declared, names, rows)
    except UnicodeError:
        problems.add(str(file), "is not text in the encoding of the schema", "write it in that encoding")
    except UNREADABLE:  # the error's own text may quote a record
        problems.add(str(file), "is not a readable table", "check the file, or write it again")
    problems.refuse()
