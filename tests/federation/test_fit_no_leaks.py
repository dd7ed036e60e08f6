"""Records, and sums before noise where sites add it, are in no message, file or log of a fit but where they belong."""

import numpy as np
import pytest
from canaries import Canaries

from diff2.federation.fit_agreement import FitAgreement
from diff2.federation.server.job import JobSpec, run_job
from diff2.federation.site.policy import read_site_file
from diff2.federation.site.records import load_records
from diff2.federation.site.site import site_from_file
from diff2.federation.wire.request import ANSWER
from diff2.fitting.statistics import ClippedDescent, TargetMean
from diff2.fitting.travelling import Unpacked
from diff2.privacy.trust import Trust
from diff2.runfile.fit import FitSettings
from diff2.tables.kinds import Number, Regression
from diff2.tables.schema import Schema
from federated import Recorder
from fitted import few_trees
from fitted_sites import NAMES

pytestmark = pytest.mark.filterwarnings("ignore::diff2.WeakDeltaWarning")
COLUMNS = ("x0", "x1", "x2", "y")
SCHEMA = Schema({name: Number(0, 5000) for name in COLUMNS[:3]}, "y", Regression(0, 5000))
ROWS = 60


def raw_records(index):
    """Numbers with eight digits, like 1234.5678."""
    return np.round(np.random.default_rng(70 + index).uniform(1000, 4999, (ROWS, 4)), 4)


@pytest.fixture(scope="module", params=["server", "sites"])
def fit(request, tmp_path_factory):
    """A fit in this process, with all its messages and files; records, and sums of some statistics before noise."""
    folder = tmp_path_factory.mktemp("fit")
    agreement = FitAgreement(SCHEMA, FitSettings(200.0, 1e-3), NAMES, Trust(request.param))
    sites, records, sums, tables = {}, Canaries(), Canaries(), {}
    for i, name in enumerate(NAMES):
        (folder / name).mkdir()
        rows = [",".join(COLUMNS), *(",".join(f"{value:.4f}" for value in row) for row in raw_records(i))]
        (folder / name / "records.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
        text = '[data]\nfile = "records.csv"\n[policy]\nepsilon = 200\ndelta = 1e-3\n'
        (folder / name / "site.toml").write_text(text, encoding="utf-8")
        file = read_site_file(folder / name / "site.toml")
        sites[name], tables[name] = site_from_file(name, file), load_records(file, agreement).table
        sites[name].approve(agreement)
        records.add(f"a record of {name}", raw_records(i))
    transport = Recorder(sites)
    with few_trees():
        run_job(JobSpec(agreement, folder / "run"), transport)
    unpacked = {name: Unpacked(SCHEMA) for name in NAMES}
    for name, asked, answer in transport.exchanges:
        statistic, _ = unpacked[name].statistic(asked.fields["statistic"], asked.arrays)
        if answer.kind == ANSWER and isinstance(statistic, TargetMean | ClippedDescent):
            grids = [answer.fields["grid"]] if "grid" in answer.fields else []
            sums.add(f"a sum of {name}", tables[name].total(statistic, 1 / (2 * ROWS)), grids)
    return request.param, folder, transport, records, sums


def test_no_record_is_in_a_message(fit):
    _, _, transport, records, _ = fit
    assert len(records) == 2 * ROWS * 4
    assert len(transport.bytes) > 100_000
    assert records.search(transport.bytes) == set()


def test_no_record_is_in_a_file_but_its_table(fit):
    _, folder, _, records, _ = fit
    found, searched = records.search_files(folder, lambda path: path.name == "records.csv")
    assert (found, searched > 100_000) == ({}, True)


def test_sums_are_seen_by_the_server_alone_that_adds_the_noise(fit):
    trust, folder, transport, _, sums = fit
    assert len(sums) > 500
    assert bool(sums.search(transport.bytes)) == (trust == "server")
    assert sums.search_files(folder)[0] == {}


def test_what_is_planted_is_found(fit):
    _, folder, transport, records, _ = fit
    value = raw_records(1)[3, 2]
    assert records.search(transport.bytes + np.float64(value).tobytes())
    assert records.search(f"outside: {value}".encode())
    (folder / "planted").write_bytes(b"x" + np.float64(value).tobytes())
    assert list(records.search_files(folder, lambda path: path.name == "records.csv")[0])
    (folder / "planted").unlink()
