"""Fetching tables: from a server on this machine, with small imitations of the publishers' archives."""

import errno
import gzip
import hashlib
import io
import os
import pickle
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from diff2.cli.main import app
from diff2.data import fetching
from diff2.data.catalogue import BLOG, CALIFORNIA, CATALOGUE, COVERTYPE, GAS, KDD
from diff2.data.datasets import load_dataset, verified_csv
from diff2.data.fetching import csv_of, fetch
from diff2.data.places import cache_folder
from diff2.errors import Diff2Error


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DIFF2_DATA", raising=False)
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)


class Server:
    """Serves what ``files`` says by path: bytes, or (bytes, length it claims to have); anything else is 404."""

    def __init__(self):
        self.files, self.asked, self.pause = {}, [], 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append(self.path)
                if self.path not in outer.files:
                    self.send_error(404)
                    return
                answer = outer.files[self.path]
                body, length = answer if isinstance(answer, tuple) else (answer, len(answer))
                self.send_response(200)
                if length is not None:
                    self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2])
                time.sleep(outer.pause)
                self.wfile.write(body[len(body) // 2 :])

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server():
    found = Server()
    yield found
    found.close()


def lines(entry, count, start=0):
    return "".join(",".join(str(i + j) for j in range(len(entry.columns))) + "\n" for i in range(start, start + count))


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return buffer.getvalue()


def tarred(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def header(entry):
    return ",".join(entry.columns) + "\n"


def gas_years(end="\n"):
    """Return five yearly files as the publisher has them, and the table they make."""
    years = {year: lines(GAS, 3, start=year) for year in range(2011, 2016)}
    files = {f"gt_{year}.csv": (header(GAS) + text).replace("\n", end) for year, text in years.items()}
    return files, (header(GAS) + "".join(years.values())).encode()


def small(entry, csv, archive, *addresses, monkeypatch=None):
    """Return the entry of a small table, with the checksums it should have."""
    provenance = replace(
        entry.provenance,
        csv_sha256=hashlib.sha256(csv).hexdigest(),
        archive_sha256=None if entry.provenance.archive_sha256 is None else hashlib.sha256(archive).hexdigest(),
    )
    found = replace(entry, provenance=provenance, source=replace(entry.source, addresses=addresses))
    if monkeypatch is not None:
        monkeypatch.setitem(CATALOGUE, entry.name, found)
    return found


@pytest.fixture
def gas(server):
    """A small table, and the server that has its archive."""
    files, csv = gas_years()
    archive = zipped(files)
    server.files["/gas.zip"] = archive
    return small(GAS, csv, archive, f"{server.address}/gas.zip")


def imitation(entry):
    """Return a small archive laid out as the publisher's, and the table in it."""
    text = lines(entry, 4)
    csv = (header(entry) + text).encode()
    if entry is CALIFORNIA:
        info = {"CaliforniaHousing/cal_housing.domain": b"longitude: continuous.\n"}
        return tarred({**info, "CaliforniaHousing/cal_housing.data": text.encode()}), csv
    if entry is COVERTYPE:
        return zipped({"covtype.info": "about", "covtype.data.gz": gzip.compress(text.encode())}), csv
    if entry is KDD:
        return gzip.compress(text.encode()), csv
    if entry is GAS:
        files, csv = gas_years(end="\r\n")
        return zipped(dict(reversed(files.items()))), csv
    train, first, second = lines(entry, 3), lines(entry, 2, 9), lines(entry, 1, 40)
    files = {
        "blogData_test-2012.03.31.01_00.csv": second.rstrip("\n"),  # a last line need not end
        "blogData_test-2012.02.01.00_00.csv": first.rstrip("\n"),
        "blogData_train.csv": train,
    }
    return zipped(files), (header(entry) + train + first + second).encode()


@pytest.mark.parametrize("entry", [CALIFORNIA, GAS, BLOG, COVERTYPE, KDD], ids=lambda entry: entry.name)
def test_archive_becomes_the_table(entry, server, tmp_path):
    archive, csv = imitation(entry)
    server.files["/archive"] = archive
    path = fetch(small(entry, csv, archive, f"{server.address}/archive"), tmp_path / "to")
    assert path == tmp_path / "to" / entry.file
    assert gzip.decompress(path.read_bytes()) == csv
    assert os.listdir(tmp_path / "to") == [entry.file]  # nothing temporary stays


@pytest.mark.parametrize("entry", [CALIFORNIA, COVERTYPE, KDD], ids=lambda entry: entry.name)
def test_true_table_survives_the_way_through_an_archive(entry, tmp_path):
    from test_sets import real  # skips where it is absent

    csv = verified_csv(entry, tmp_path.joinpath(real(entry.name), entry.file))
    body = csv.partition(b"\n")[2]
    archive = tmp_path / "archive"
    files = {"CaliforniaHousing/cal_housing.data": body} if entry is CALIFORNIA else {"covtype.data.gz": body}
    archive.write_bytes(tarred(files) if entry is CALIFORNIA else gzip.compress(body, 1))
    assert csv_of(entry, archive) == csv


def test_second_fetch_asks_nobody(gas, server, tmp_path):
    fetch(gas, tmp_path)
    fetch(gas, tmp_path)
    assert server.asked == ["/gas.zip"]


def test_default_place_is_the_cache_of_the_user(gas):
    assert fetch(gas) == cache_folder() / GAS.file


def test_progress_is_told(gas, tmp_path):
    told = []
    fetch(gas, tmp_path, lambda done, total: told.append((done, total)))
    assert told[0][0] == 0
    assert told[-1][0] == told[-1][1] > 0


def test_loading_downloads_only_on_request(gas, server, tmp_path, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "gas_turbine", gas)
    with pytest.raises(Diff2Error, match="diff2 data fetch gas_turbine"):
        load_dataset("gas_turbine", tmp_path)
    assert server.asked == []
    data = load_dataset("gas_turbine", tmp_path, download=True)
    assert data.inputs.shape == (15, 9)
    assert data.path == tmp_path / GAS.file
    assert load_dataset("gas_turbine", tmp_path).inputs.shape == (15, 9)


def test_next_address_is_tried(gas, server, tmp_path):
    source = replace(gas.source, addresses=(f"{server.address}/gone.zip", *gas.source.addresses))
    fetch(replace(gas, source=source), tmp_path)
    assert server.asked == ["/gone.zip", "/gas.zip"]


def test_damaged_table_is_replaced(gas, tmp_path):
    (tmp_path / gas.file).write_bytes(b"rubbish")
    assert verified_csv(gas, fetch(gas, tmp_path))


def fails(entry, folder):
    """Return the message of a fetch that fails and leaves nothing behind."""
    with pytest.raises(Diff2Error) as error:
        fetch(entry, folder)
    assert not folder.exists() or os.listdir(folder) == []
    return str(error.value)


def test_address_that_is_gone(gas, server, tmp_path):
    server.files.clear()
    message = fails(gas, tmp_path / "to")
    assert "the server answered 404" in message
    assert f"put {gas.file} with sha256 {gas.provenance.csv_sha256}" in message


def test_nobody_listens(gas, tmp_path):
    source = replace(gas.source, addresses=("http://127.0.0.1:9/gas.zip",))
    assert "no connection" in fails(replace(gas, source=source), tmp_path / "to")


def test_server_dies_midway(gas, server, tmp_path):
    archive = server.files["/gas.zip"]
    server.files["/gas.zip"] = (archive[:100], len(archive))
    assert f"the connection ended after 100 of {len(archive):,} bytes" in fails(gas, tmp_path / "to")


def test_truncated_archive_of_unknown_length(gas, server, tmp_path):
    server.files["/gas.zip"] = (server.files["/gas.zip"][:300], None)
    assert "pp_gas_emission.zip is damaged" in fails(gas, tmp_path / "to")


def test_truncated_gzip(server, tmp_path):
    archive, csv = imitation(COVERTYPE)
    bare = gzip.compress(csv.partition(b"\n")[2])
    server.files["/covtype.data.gz"] = (bare[:-9], None)
    entry = small(COVERTYPE, csv, archive, f"{server.address}/covtype.data.gz")
    assert "covertype.zip is damaged (EOFError)" in fails(entry, tmp_path / "to")


def test_altered_archive_names_both_checksums(server, tmp_path):
    archive, csv = imitation(KDD)
    entry = small(KDD, csv, archive, f"{server.address}/kdd.gz")
    other = gzip.compress(lines(KDD, 5).encode())
    server.files["/kdd.gz"] = other
    message = fails(entry, tmp_path / "to")
    assert hashlib.sha256(archive).hexdigest() in message
    assert hashlib.sha256(other).hexdigest() in message


def test_altered_table_names_both_checksums(gas, server, tmp_path):
    files, csv = gas_years()
    files["gt_2011.csv"] = files["gt_2011.csv"].replace("2013,2014", "0,2014", 1)
    server.files["/gas.zip"] = zipped(files)
    message = fails(gas, tmp_path / "to")
    assert f"expected sha256 {hashlib.sha256(csv).hexdigest()}" in message
    assert f"got {hashlib.sha256(csv.replace(b'2013,2014', b'0,2014', 1)).hexdigest()}" in message


@pytest.mark.parametrize("change", [("NOX", "NOx"), (",NOX", "")])
def test_archive_with_other_columns(gas, server, tmp_path, change):
    files, _ = gas_years()
    server.files["/gas.zip"] = zipped({name: text.replace(*change) for name, text in files.items()})
    assert "gt_2011.csv in pp_gas_emission.zip has other columns than gas_turbine" in fails(gas, tmp_path / "to")


def test_archive_without_a_member(gas, server, tmp_path):
    files, _ = gas_years()
    del files["gt_2014.csv"]
    server.files["/gas.zip"] = zipped(files)
    assert "has no gt_2014.csv" in fails(gas, tmp_path / "to")


@pytest.mark.parametrize("full", ["archive", "table"])
def test_no_space_left(gas, tmp_path, monkeypatch, full):
    opened, calls = tempfile.NamedTemporaryFile, []

    def failing(*args, **options):
        file = opened(*args, **options)
        calls.append(file.name)
        if len(calls) == {"archive": 1, "table": 2}[full]:
            file.write = lambda content: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device"))
        return file

    monkeypatch.setattr(fetching.tempfile, "NamedTemporaryFile", failing)
    message = fails(gas, tmp_path / "to")
    assert f"no space left in {tmp_path / 'to'}" in message
    assert "--to DIR" in message


def test_a_part_that_another_fetch_renames_meanwhile_is_no_error(gas, tmp_path, monkeypatch):
    gone = tmp_path / f".{gas.file}.abc.part"
    monkeypatch.setattr(fetching.Path, "glob", lambda self, pattern: iter([gone]))
    fetching._remove_stale(tmp_path / gas.file)


def test_folder_that_cannot_be_written(gas, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Diff2Error, match=r"cannot write to .* choose another folder: diff2 data fetch gas_turbine"):
        fetch(gas, tmp_path / "file" / "below")


def test_old_temporary_files_are_removed(gas, tmp_path):
    old, new = (tmp_path / f".{gas.file}.{age}.part" for age in ("old", "new"))
    for path in (old, new):
        path.touch()
    os.utime(old, (1, 1))
    fetch(gas, tmp_path)
    assert not old.exists()
    assert new.exists()  # perhaps another process is writing it


FETCH = """
import pathlib, pickle, sys
from diff2.data.fetching import fetch
fetch(pickle.loads(pathlib.Path(sys.argv[1]).read_bytes()), sys.argv[2])
"""


def start(entry, folder):
    (folder.parent / "entry.pickle").write_bytes(pickle.dumps(entry))
    return subprocess.Popen([sys.executable, "-c", FETCH, folder.parent / "entry.pickle", folder])


def test_two_processes_at_once(gas, server, tmp_path):
    server.pause = 0.3
    both = [start(gas, tmp_path / "to") for _ in range(2)]
    assert [process.wait(300) for process in both] == [0, 0]
    assert os.listdir(tmp_path / "to") == [gas.file]
    assert verified_csv(gas, tmp_path / "to" / gas.file)


def test_killed_in_the_middle(gas, server, tmp_path):
    server.pause = 5.0
    process = start(gas, tmp_path / "to")
    while not server.asked:
        time.sleep(0.02)
    process.kill()
    process.wait(300)
    assert not (tmp_path / "to" / gas.file).exists()
    server.pause = 0.0
    assert verified_csv(gas, fetch(gas, tmp_path / "to"))


def test_ctrl_c_leaves_nothing(gas, tmp_path):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(gas, tmp_path / "to", interrupt)
    assert os.listdir(tmp_path / "to") == []


def run(*words):
    return CliRunner(env={"COLUMNS": "140"}).invoke(app, ["data", *(str(word) for word in words)])


def test_commands(gas, tmp_path, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "gas_turbine", gas)
    listed = run("list")
    assert listed.exit_code == 0
    assert listed.stdout.count("missing │") == 5
    fetched = run("fetch", "gas_turbine", "--to", tmp_path)
    assert fetched.exit_code == 0, fetched.stderr
    assert str(tmp_path / gas.file) in fetched.stdout
    assert "CC BY 4.0" in fetched.stdout
    listed = run("list", "--data-dir", tmp_path)
    assert listed.stdout.count("missing │") == 4
    assert '"rows": 36733' in run("list", "--json").stdout


def test_command_leaves_a_table_where_it_is_and_mends_it_there(gas, server, tmp_path, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "gas_turbine", gas)
    monkeypatch.setenv("DIFF2_DATA", str(tmp_path))
    (tmp_path / gas.file).write_bytes(b"damaged")
    for _ in range(2):
        assert run("fetch", "gas_turbine", "-q").exit_code == 0
    assert verified_csv(gas, tmp_path / gas.file)
    assert server.asked == ["/gas.zip"]
    assert not cache_folder().exists()


def test_command_refuses_an_unknown_name(server):
    result = run("fetch", "gas_turbin")
    assert result.exit_code == 1
    assert "did you mean 'gas_turbine'" in result.stderr
    assert server.asked == []


def test_command_says_what_failed_in_one_line(gas, server, tmp_path, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "gas_turbine", gas)
    server.files.clear()
    result = run("fetch", "gas_turbine", "--to", tmp_path / "to", "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
