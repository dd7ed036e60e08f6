"""Files: read as text, the same with and without pyarrow, and refused with the remedy."""

import gzip
import sys

import pandas
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diff2.errors import InvalidArgument
from diff2.tables import files
from diff2.tables.file_format import FileFormat
from diff2.tables.files import read_tables, stream_table

TEXT = "name;größe\nJürgen;1,5\nZoë;\n"


def texts(frame):
    """All cells, as texts."""
    found = []
    for cells in frame.cells:
        known, places = cells.texts()
        found.append([known[place] for place in places])
    return frame.names, found


def message(*arguments):
    with pytest.raises(InvalidArgument) as caught:
        read_tables(*arguments)
    return str(caught.value)


@pytest.fixture(params=["pyarrow", "csv module"])
def reader(request, monkeypatch):
    if request.param == "pyarrow":
        pytest.importorskip("pyarrow")
    else:
        for name in ("pyarrow", "pyarrow.csv"):
            monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16", "utf-32"])
def test_any_declared_encoding_and_delimiter(tmp_path, encoding):
    (tmp_path / "t.csv").write_text(TEXT, encoding=encoding)
    declared = "utf-8" if encoding == "utf-8-sig" else encoding  # its mark is taken for what it is
    frame = read_tables(tmp_path / "t.csv", FileFormat(";", declared, ","))
    assert texts(frame) == (("name", "größe"), [["Jürgen", "Zoë"], ["1,5", None]])
    assert frame["größe"].numbers(",").tolist()[0] == 1.5


@pytest.mark.usefixtures("reader")
def test_no_cell_however_long_refuses_a_table(tmp_path):
    """Red: a line with a long cell and one cell too many made the table no readable one."""
    for length in (10, 200_000):
        (tmp_path / "t.csv").write_text(f"a,b\n1,2\n3,{'x' * length},5\n4,5\n", encoding="utf-8")
        assert read_tables(tmp_path / "t.csv").size == sum(part.size for part in stream_table(tmp_path / "t.csv")) == 3


@pytest.mark.usefixtures("reader")
def test_a_damaged_gzip_file_is_refused_with_a_fixed_text(tmp_path):
    """Red: an error of zlib."""
    whole = gzip.compress(b"a,b\n" + b"".join(b"%d,secret\n" % i for i in range(3000)))
    for damaged in (whole[:200], whole[:200] + bytes(200) + whole[400:]):
        (tmp_path / "t.csv.gz").write_bytes(damaged)
        for read in (read_tables, lambda path: list(stream_table(path))):
            with pytest.raises(InvalidArgument, match=r"is not a readable .*table; check the file"):
                read(tmp_path / "t.csv.gz")


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_a_wrong_delimiter_is_named(tmp_path, delimiter):
    (tmp_path / "t.csv").write_text("a;b;c\nsecret;2;3\n".replace(";", delimiter), encoding="utf-8")
    text = message(tmp_path / "t.csv")
    assert "one column only" in text
    assert f"set the delimiter to {delimiter!r}" in text
    assert "secret" not in text


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(("written", "declared"), [("latin-1", "utf-8"), ("utf-8", "ascii"), ("cp1252", "utf-8")])
def test_a_wrong_encoding_is_named(tmp_path, written, declared):
    (tmp_path / "t.csv").write_text("a;b\n" + "x;y\n" * 9000 + "sécrêt;2\n", encoding=written)
    text = message(tmp_path / "t.csv", FileFormat(";", declared))
    assert f"is not text in the encoding {declared}" in text
    assert "--encoding" in text
    assert "position" not in text


@pytest.mark.parametrize(
    ("written", "declared", "named"),
    [("utf-16", "utf-8", "utf-16"), ("utf-8-sig", "latin-1", "utf-8"), ("utf-16", "latin-1", "utf-16")],
)
def test_a_mark_of_another_encoding_is_named(tmp_path, written, declared, named):
    (tmp_path / "t.csv").write_text(TEXT, encoding=written)
    assert f"set the encoding to {named}" in message(tmp_path / "t.csv", FileFormat(";", declared))


@pytest.mark.usefixtures("reader")
def test_lines_of_another_length_are_filled_or_cut(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,c\n1,2,3\n4\n5,6,7,8,9\n\n 1,2\n", encoding="utf-8")
    assert texts(read_tables(tmp_path / "t.csv"))[1] == [
        ["1", "4", "5", "1"],
        ["2", None, "6", "2"],
        ["3", None, "7", None],
    ]


@pytest.mark.usefixtures("reader")
def test_a_column_that_no_line_has_is_missing(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,c\n1,2\n4\n", encoding="utf-8")
    assert texts(read_tables(tmp_path / "t.csv"))[1] == [["1", "4"], ["2", None], [None, None]]


@pytest.mark.usefixtures("reader")
def test_line_breaks_in_quotes_belong_to_the_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 100)  # such cells lie across blocks
    (tmp_path / "t.csv").write_text("a,b\n" + '"x\n\ny, z",1\n' * 100, encoding="utf-8")
    assert texts(read_tables(tmp_path / "t.csv"))[1] == [["x\n\ny, z"] * 100, ["1"] * 100]


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("text", ["a,b\n", "a,b"])
def test_a_table_without_records(tmp_path, text):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    assert texts(read_tables(tmp_path / "t.csv")) == (("a", "b"), [[], []])


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_file_is_refused(tmp_path, text):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    assert "is empty" in message(tmp_path / "t.csv")


def test_problems_of_several_files_are_reported_at_once(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("x;y\n1;2\n", encoding="utf-8")
    (tmp_path / "c.csv").write_text("y,z\n1,2\n", encoding="utf-8")
    (tmp_path / "d.csv").write_text("y,x,x,x\n1,2,3,4\n", encoding="utf-8")
    (tmp_path / "e.parquet").write_bytes(b"nothing")
    (tmp_path / "f.csv.gz").write_bytes(b"nothing")
    names = ["a.csv", "b.csv", "c.csv", "d.csv", "e.parquet", "f.csv.gz", "g.csv"]
    text = message([tmp_path / name for name in names])
    for part in ("b.csv has one column only", "c.csv and", "differ in the columns 'x', 'z'", "d.csv is there twice",
                 "e.parquet is not a readable Parquet", "f.csv.gz is not a readable CSV",
                 "g.csv does not exist"):  # fmt: skip
        assert part in text, part


def test_several_files_may_have_their_columns_in_another_order(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n", encoding="utf-8")
    pandas.DataFrame({"y": [4], "x": [3]}).to_parquet(tmp_path / "b.parquet")
    assert texts(read_tables([tmp_path / "a.csv", tmp_path / "b.parquet"])) == (("x", "y"), [["1", "3"], ["2", "4"]])


@pytest.mark.usefixtures("reader")
def test_a_cell_may_have_any_length(tmp_path):
    """Whatever reads it: the csv module alone would refuse the file for one record."""
    (tmp_path / "t.csv").write_text(f"a,b\n1,{'x' * 200_000}\n", encoding="utf-8")
    assert len(texts(read_tables(tmp_path / "t.csv"))[1][1][0]) == 200_000


def test_a_damaged_archive_is_refused(tmp_path):
    whole = bytearray(gzip.compress(b"a,b\n" + b"1,2\n" * 1000))
    whole[12:20] = b"\xff" * 8
    (tmp_path / "t.csv.gz").write_bytes(bytes(whole))
    assert "is not a readable CSV" in message(tmp_path / "t.csv.gz")


def test_undecodable_bytes_are_read_where_a_site_must_answer(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"a,b\n1,\xff\n2,3\n")
    assert texts(read_tables(tmp_path / "t.csv", undecodable="replace"))[1] == [["1", "2"], ["\ufffd", "3"]]


def test_a_truncated_archive_is_refused(tmp_path):
    whole = gzip.compress(b"a,b\n" + b"1,2\n" * 1000)
    (tmp_path / "t.csv.gz").write_bytes(whole[: len(whole) // 2])
    assert "is not a readable CSV" in message(tmp_path / "t.csv.gz")


def test_parquet_without_pyarrow_names_the_remedy(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'diff2[parquet]'" in message(tmp_path / "t.parquet")


pieces = st.lists(
    st.sampled_from(["a", "b", ",", '"', "\n", "\r\n", "\r", " ", "1", "ü", '""', "\x00", "\t"]), max_size=14
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces)
def test_the_fast_reader_reads_what_the_slow_one_reads(tmp_path, parts):
    """Whatever is in the file: the fast one gives up, or both see the same cells."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.csv"
    path.write_bytes(("x,y\n" + "".join(parts)).encode())
    fast = files._by_arrow(path, FileFormat(), ("x", "y"))
    if fast is not None:
        assert texts(fast) == texts(next(files.csv_frames(path, FileFormat(), ("x", "y"))))


def test_names_that_are_there_twice_in_a_parquet_file(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table([[1], [2]], names=["x", "x"]), tmp_path / "t.parquet")
    assert "column 'x' of" in message([tmp_path / "t.parquet", tmp_path / "none.csv"])
