"""From tables to clients: reading, checking, scaling."""

from .builtin import BuiltinSettings
from .catalogue import Provenance
from .datasets import Dataset, load_dataset
from .loading import DataSettings, EncodedClients, Pending, load_clients
from .named import DatasetSettings
from .scaling import Encoding, Scaling
from .tables import ClientTable, TableSettings, read_clients, read_table

__all__ = [
    "BuiltinSettings",
    "ClientTable",
    "DataSettings",
    "Dataset",
    "DatasetSettings",
    "EncodedClients",
    "Encoding",
    "Pending",
    "Provenance",
    "Scaling",
    "TableSettings",
    "load_clients",
    "load_dataset",
    "read_clients",
    "read_table",
]
