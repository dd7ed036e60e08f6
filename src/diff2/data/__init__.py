"""From the owners' tables to clients: reading, checking, scaling."""

from .builtin import BuiltinSettings
from .loading import DataSettings, EncodedClients, load_clients
from .scaling import Encoding, Scaling
from .tables import ClientTable, TableSettings, read_clients, read_table

__all__ = [
    "BuiltinSettings",
    "ClientTable",
    "DataSettings",
    "EncodedClients",
    "Encoding",
    "Scaling",
    "TableSettings",
    "load_clients",
    "read_clients",
    "read_table",
]
