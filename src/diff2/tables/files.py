"""Tables in files: CSV, CSV.gz and Parquet.

Every cell of a CSV file is read as text; the schema says what it means. A line with too few cells has missing ones at
its end, further cells of a line with too many are not looked at. So no record changes how another one is read.

What can be wrong with a file is found in its header and in its bytes: a wrong delimiter, a wrong encoding, a mark of
another encoding at its start. Bytes that are no text in that encoding, a gzip stream that is cut off or damaged, and
what is no Parquet file refuse the whole file, with one fixed text each: it is then no table at all, and which values a
record has in one makes no difference. No cell of a table, however long, refuses it. Sites of a federation
read undecodable bytes as well.
"""

import codecs
import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from os import PathLike
from pathlib import Path
from typing import Any, TextIO

from .._files import AnyPath
from ..errors import InvalidArgument
from .cells import Cells, objects
from .file_format import FileFormat
from .frames import Frame, as_frame, concatenated
from .problems import Problems
from .rows import CHUNK

PARQUET = (".parquet", ".pq")
UNREADABLE = (csv.Error, EOFError, OSError, zlib.error)
BLOCK = 1 << 24  # bytes that pyarrow reads at a time
DELIMITERS = {",": "','", ";": "';'", "\t": "'\\t' (a tab)", "|": "'|'"}
WHERE = "--{0}, or {0} in [file] of a schema, or in [data.format] of a run file"
MARKS = {  # the longer ones first, for one begins with another
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
ROWS = 16 * CHUNK


def read_tables(
    paths: AnyPath | Sequence[AnyPath],
    format: FileFormat | None = None,
    *,
    undecodable: str = "strict",
) -> Frame:
    """Read one file, or several with the same columns; the problems of all of them are reported at once.

    Args:
        undecodable: ``"strict"`` refuses a file with bytes that are not text, ``"replace"`` replaces them.
    """
    one = isinstance(paths, str | PathLike)
    files = [Path(paths)] if one else [Path(path) for path in paths]  # type: ignore[arg-type, union-attr]
    problems = Problems(str(files[0]) if len(files) == 1 else "the files")
    frames = [_read(path, format or FileFormat(), undecodable, problems) for path in files]
    first = frames[0].names if frames and frames[0] is not None else ()
    for path, frame in zip(files, frames, strict=True):
        if frame is not None and first and set(frame.names) != set(first):
            differing = ", ".join(repr(name) for name in sorted(set(frame.names) ^ set(first)))
            problems.add(str(path), f"and {files[0]} differ in the columns {differing}", "give them the same columns")
    problems.refuse()
    found = [frame for frame in frames if frame is not None]
    if not found:
        raise InvalidArgument("expected at least one file, got none")
    return concatenated([found[0], *(_ordered(frame, first) for frame in found[1:])])


def _ordered(frame: Frame, names: tuple[str, ...]) -> Frame:
    return frame if frame.names == names else Frame(names, tuple(frame[name] for name in names), frame.size)


def _read(path: Path, format: FileFormat, undecodable: str, problems: Problems) -> Frame | None:
    """Return what is in a file, or None where a problem was noted."""
    if not path.is_file():
        problems.add(str(path), "does not exist", "check the name")
        return None
    before = len(problems.lines)
    if path.suffix.lower() in PARQUET:
        frame = next(parquet_frames(path, problems), None)
    else:
        frame = None
        try:
            names = header_names(path, format, problems, undecodable)
            if len(problems.lines) == before:
                frame = _by_arrow(path, format, names) or next(csv_frames(path, format, names, undecodable=undecodable))
        except UnicodeError:
            remedy = f"name its encoding, say latin-1, cp1252 or utf-16 ({WHERE.format('encoding')})"
            problems.add(str(path), f"is not text in the encoding {format.encoding}", remedy)
        except UNREADABLE:  # the error's own text may quote a record
            problems.add(str(path), "is not a readable CSV or CSV.gz table", "check the file, or write it again")
    _note_twice(path, () if frame is None else frame.names, problems)
    return frame


def _note_twice(path: Path, names: Sequence[str], problems: Problems) -> None:
    for name in sorted({name for name in names if name and names.count(name) > 1}):
        problems.add(f"column {name!r} of {path}", "is there twice", "rename one of them")


def parquet_frames(path: Path, problems: Problems, rows: int | None = None) -> Iterator[Frame]:
    """Yield the records of a Parquet file, all at once or some at a time; none where a problem was noted."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        problems.add(str(path), "needs pyarrow to be read", "install it: pip install 'diff2[parquet]'")
        return
    try:
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        _note_twice(path, names, problems)
        if len(set(names)) == len(names):
            whole = rows is None or not file.metadata.num_rows
            yield from map(as_frame, [file.read()] if whole else file.iter_batches(rows))
    except (pyarrow.ArrowException, OSError):
        problems.add(str(path), "is not a readable Parquet table", "check the file, or write it again")


def header_names(path: Path, format: FileFormat, problems: Problems, undecodable: str = "strict") -> tuple[str, ...]:
    """Return the names of the columns, after noting what they tell about a wrong format."""
    with _opened(path) as file:
        start = file.read(4)
    encoding = next((encoding for mark, encoding in MARKS.items() if start.startswith(mark)), None)
    if encoding not in (None, codecs.lookup(format.encoding).name.replace("-sig", "")):
        problems.add(
            str(path), f"begins with the mark of {encoding}, not of {format.encoding}",
            f"set the encoding to {encoding} ({WHERE.format('encoding')})",
        )  # fmt: skip
        return ()
    with opened_text(path, format, undecodable) as file:  # which decodes some of the records, too
        names = tuple(name.strip() for name in next(csv_lines(file, format), []))
    if not names:
        problems.add(str(path), "is empty", "expected a line of column names and one line for each record")
    if len(names) == 1:
        for other, spelled in DELIMITERS.items():
            if other in names[0] and other != format.delimiter:
                problems.add(
                    str(path), f"has one column only, whose name holds {spelled}",
                    f"set the delimiter to {spelled} ({WHERE.format('delimiter')})",
                )  # fmt: skip
                break
    return names


def _by_arrow(path: Path, format: FileFormat, names: tuple[str, ...]) -> Frame | None:
    """Read with pyarrow; None where it is not installed or finds anything unusual, which the slow way decides."""
    try:
        import pyarrow
        from pyarrow import csv as arrow_csv
    except ImportError:
        return None
    places = [str(j) for j in range(len(names))]
    try:
        table = arrow_csv.read_csv(
            path,
            read_options=arrow_csv.ReadOptions(column_names=places, encoding=format.encoding, block_size=BLOCK),
            parse_options=arrow_csv.ParseOptions(delimiter=format.delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(places, pyarrow.string()), null_values=[""], strings_can_be_null=True
            ),
        )
    except (pyarrow.ArrowException, UnicodeError, ValueError, OSError):
        return None
    table = table.slice(1)  # without the header
    return Frame(names, tuple(Cells(column) for column in table.columns), table.num_rows)


def csv_frames(
    path: Path, format: FileFormat, names: tuple[str, ...], rows: int | None = None, undecodable: str = "strict"
) -> Iterator[Frame]:
    """Yield the records of a CSV file, all at once or some at a time; a table without records gives one frame."""
    with opened_text(path, format, undecodable) as file:
        lines = csv_lines(file, format)
        next(lines)
        part, first = list(islice(lines, rows)), True
        while part or first:
            columns: list[Any] = list(zip_longest(*(line[: len(names)] for line in part)))
            columns += [[None] * len(part)] * (len(names) - len(columns))
            yield Frame(names, tuple(_texts(column) for column in columns), len(part))
            part, first = list(islice(lines, rows)), False


def _texts(column: Sequence[str | None]) -> Cells:
    """Return texts, held by Arrow where it is there: it reads numbers much faster."""
    try:
        import pyarrow
    except ImportError:
        return Cells(objects(column))
    return Cells(pyarrow.chunked_array([pyarrow.array(column, pyarrow.string())]))


def csv_lines(file: TextIO, format: FileFormat) -> Iterator[list[str]]:
    """Yield the lines that are not empty, with cells of any length."""
    csv.field_size_limit(2**31 - 1)  # of the process: by default a cell of 131,073 characters refuses the table
    return (line for line in csv.reader(file, delimiter=format.delimiter) if line)


def _opened(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")


def opened_text(path: Path, format: FileFormat, undecodable: str = "strict") -> Any:
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    return opener(path, "rt", encoding=format.codec, errors=undecodable, newline="")


def stream_table(path: AnyPath, format: FileFormat | None = None, rows: int = ROWS) -> Iterator[Frame]:
    """Yield the records in order, a few thousand at a time; a table without records gives one empty frame."""
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
