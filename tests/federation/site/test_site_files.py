"""Site files, and the records of a site as they were agreed to be encoded."""

import math

import numpy as np
import pytest
import torch

from diff2 import InvalidArgument
from diff2.data.scaling import Scaling
from diff2.federation.among_sites import Column
from diff2.federation.from_run_file import public_agreement
from diff2.federation.site.policy import Policy, read_site_file
from diff2.federation.site.records import load_records
from diff2.runfile.reader import read_run_file
from federation_tables import TABLES, write_run, write_sites

pytestmark = pytest.mark.filterwarnings("ignore::diff2.PrivacyLeakWarning", "ignore::diff2.WeakDeltaWarning")


def site_file(folder, text):
    path = folder / "site.toml"
    path.write_text(text, encoding="utf-8")
    return path


class TestSiteFile:
    def test_it_is_read(self, tmp_path):
        text = """
        [site]
        directory = "kept"
        [data]
        file = "a.csv"
        [data.columns]
        age = "ALTER"
        income = { bounds = [0, 9], unit = "k", missing = 2 }
        sick = { name = "KRANK", classes = ["no", "yes"] }
        [policy]
        epsilon = 3
        delta = 1e-6
        smallest_size = 100
        algorithms = ["diff2", "dpgd"]
        reported_size = 1000
        """
        site = read_site_file(site_file(tmp_path, text))
        assert site.policy == Policy(3.0, 1e-6, 100, ("diff2", "dpgd"), 1000)
        assert site.directory == tmp_path / "kept"
        assert site.data.columns == {
            "age": Column("ALTER"),
            "income": Column(bounds=(0.0, 9.0), unit="k", missing=2.0),
            "sick": Column("KRANK", classes=("no", "yes")),
        }

    def test_private_by_default(self, tmp_path):
        site = read_site_file(site_file(tmp_path, '[data]\nfile = "a.csv"\n[policy]\nepsilon = 1\n'))
        assert site.policy.delta == 1e-5

    @pytest.mark.parametrize(
        ("text", "match"),
        [
            ('[data]\nfile = "a"', r"\[policy\] is missing"),
            ("[policy]\nepsilon = 1", r"\[data\] is missing"),
            ("[data]\n[policy]\nepsilon = 1", "either file"),
            ('[data]\nfile = "a"\nentry_point = "b:c"\n[policy]\nepsilon = 1', "either file"),
            ('[data]\nentry_point = "b"\n[policy]\nepsilon = 1', "module:function"),
            ('[data]\nfile = "a"\n[policy]\nepsilon = 0', "epsilon > 0"),
            ('[data]\nfile = "a"\n[policy]\ndelta = 1e-5', "needs the key 'epsilon'"),
            ('[data]\nfile = "a"\n[policy]\nepsilon = 1\nepsilom = 2', "did you mean 'epsilon'"),
            ('[data]\nfile = "a"\n[policy]\nepsilon = 1\nalgorithms = ["dif2"]', "did you mean 'diff2'"),
            ('[data]\nfile = "a"\n[policy]\nepsilon = 1\nsmallest_size = 9\nreported_size = 8', "reported_size >= 9"),
            ('[data]\nfile = "a"\n[policy]\nepsilon = 1\n[polic]', "did you mean 'policy'"),
            ('[data]\nfile = "a"\ncolumns = { a = 3 }\n[policy]\nepsilon = 1', "columns.a to be a name"),
            ('[data]\nfile = "a"\ncolumns.a = { bound = [0, 1] }\n[policy]\nepsilon = 1', "did you mean 'bounds'"),
            ('[data]\nfile = "a"\ncolumns.a = { bounds = [1, 0] }\n[policy]\nepsilon = 1', "low < high"),
            ('[data]\nfile = "a"\ncolumns.a = { classes = ["x"] }\n[policy]\nepsilon = 1', "two or more"),
            ('[data]\nfile = "a"\ncolumns.a = { unit = "m" }\n[policy]\nepsilon = 1', "go with bounds"),
            ('[data]\nfile = "a"\n[policy]\nepsilon = 1\ncolumns = ["a"]', "columns and targets"),
            ('[data]\nfile = "a"\n[policy]\nepsilon = 1\nmax_rounds = 0', "max_rounds >= 1"),
            ("epsilon = 1", "unknown key outside of a table"),
            ("[data", "not a TOML file"),
        ],
    )
    def test_what_is_wrong_is_named(self, tmp_path, text, match):
        with pytest.raises(InvalidArgument, match=match):
            read_site_file(site_file(tmp_path, text))

    def test_there_must_be_one(self, tmp_path):
        with pytest.raises(InvalidArgument, match="no site file"):
            read_site_file(tmp_path / "site.toml")


class TestRecords:
    """From the site's table to the encoding that was agreed."""

    def records(self, folder, name):
        agreement = public_agreement(read_run_file(write_run(folder)))
        return load_records(read_site_file(folder / "sites" / name / "site.toml"), agreement)

    def test_columns_have_other_names_and_public_ranges_hold(self, tmp_path):
        write_sites(tmp_path / "sites")
        client = self.records(tmp_path, "south").client
        expected = Scaling.of_input((0, 100)).encode(np.array([30.0, 50, 70]))
        assert torch.equal(client.inputs[:, 0], torch.as_tensor(expected, dtype=torch.float32))  # not its own "age"
        assert client.targets.flatten().tolist() == [0.0, 0.25, 1.0]  # 25 visits are clipped to 20

    def test_parquet(self, tmp_path):
        write_sites(tmp_path / "sites")
        before = self.records(tmp_path, "north")
        folder = tmp_path / "sites" / "north"
        TABLES["north"].to_parquet(folder / "table.parquet")
        (folder / "site.toml").write_text('[data]\nfile = "table.parquet"\n[policy]\nepsilon = 1\n')
        after = self.records(tmp_path, "north")
        assert torch.equal(before.client.inputs, after.client.inputs)
        assert torch.equal(before.client.targets, after.client.targets)

    @pytest.mark.parametrize("function", ["table", "arrays"])
    def test_an_entry_point(self, tmp_path, monkeypatch, function):
        write_sites(tmp_path / "sites")
        before = self.records(tmp_path, "north")
        (tmp_path / "hospital.py").write_text(
            "import numpy, pandas\n"
            "frame = pandas.DataFrame({'age': [20, 40, 60, 80], 'income': [.1, .2, .3, .4], 'visits': [1, 2, 3, 4]})\n"
            "def table(): return frame\n"
            "def arrays(): return ((frame[['age', 'income']].to_numpy() - [50, 0.5]) / [50, 0.5], "
            "frame[['visits']].to_numpy() / 20)\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        text = f'[data]\nentry_point = "hospital:{function}"\n[policy]\nepsilon = 1\n'
        (tmp_path / "sites" / "north" / "site.toml").write_text(text)
        after = self.records(tmp_path, "north")
        assert torch.allclose(before.client.inputs, after.client.inputs)
        assert torch.allclose(before.client.targets, after.client.targets)

    @pytest.mark.parametrize(
        ("text", "match"),
        [
            ('file = "missing.csv"', "does not exist"),
            ('file = "missing.npz"', "no file"),
            ('entry_point = "nowhere:load"', "cannot be found"),
            ('file = "table.csv"\ncolumns = { age = "AGE" }', "no column 'AGE'"),
        ],
    )
    def test_what_cannot_be_read(self, tmp_path, text, match):
        write_sites(tmp_path / "sites")
        (tmp_path / "sites" / "north" / "site.toml").write_text(f"[data]\n{text}\n[policy]\nepsilon = 1\n")
        with pytest.raises(InvalidArgument, match=match):
            self.records(tmp_path, "north")

    def test_arrays_must_have_the_agreed_shape_and_hold_no_objects(self, tmp_path):
        write_sites(tmp_path / "sites")
        folder = tmp_path / "sites" / "north"
        (folder / "site.toml").write_text('[data]\nfile = "a.npz"\n[policy]\nepsilon = 1\n')
        np.savez(folder / "a.npz", inputs=np.zeros((4, 3)), targets=np.zeros((4, 1)))
        with pytest.raises(InvalidArgument, match="shape"):
            self.records(tmp_path, "north")
        np.savez(folder / "a.npz", inputs=np.array([object()] * 4), targets=np.zeros((4, 1)))
        with pytest.raises(InvalidArgument, match="no arrays"):
            self.records(tmp_path, "north")


def test_a_policy_of_infinity_is_written_as_a_number(tmp_path):
    path = site_file(tmp_path, '[data]\nfile = "a"\n[policy]\nepsilon = inf\n')
    assert read_site_file(path).policy.epsilon == math.inf
