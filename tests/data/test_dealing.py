"""One table becomes several clients: every record at exactly one of them, in turn or by a column."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diff2 import InvalidArgument
from diff2.data.named import DatasetSettings
from diff2.data.tables import as_table, deal


@given(count=st.integers(1, 400), clients=st.integers(1, 12))
def test_clients_differ_by_one_record_at_most(count, clients):
    table = as_table({"age": np.arange(count)})
    if count < clients:
        with pytest.raises(InvalidArgument, match=f"clients={clients} is more than"):
            deal([table], clients)
        return
    dealt = deal([table], clients)
    assert [client.name for client in dealt] == [f"part {p + 1} of {clients}" for p in range(clients)]
    parts = [client.frame["age"].numbers() for client in dealt]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for p, part in enumerate(parts):
        assert (part % clients == p).all()
        assert (np.diff(part) > 0).all()


def test_owners_stay_together():
    table = as_table({"age": np.arange(300), "owner": np.arange(300) // 3})
    first, second = (client.frame["owner"].numbers() for client in deal([table], 2, "owner"))
    assert len(first) == len(second) == 150
    assert not set(first) & set(second)


def test_columns_of_public_tables_tell_clients_apart():
    settings = DatasetSettings("kddcup99", client_column="protocol_type")
    assert settings.inputs == 118 - 3
    with pytest.raises(InvalidArgument, match="did you mean 'protocol_type'"):
        DatasetSettings("kddcup99", client_column="protocol")
    with pytest.raises(InvalidArgument, match="not a column of covertype that could separate clients"):
        DatasetSettings("covertype", client_column="Cover_Type")
