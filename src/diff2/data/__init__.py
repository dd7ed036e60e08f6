"""From the owners' tables to clients: reading, checking, scaling."""

from .scaling import EncodedClients, Encoding, Scaling, load_clients
from .tables import ClientTable, TableSettings, read_clients, read_table

__all__ = [
    "ClientTable",
    "EncodedClients",
    "Encoding",
    "Scaling",
    "TableSettings",
    "load_clients",
    "read_clients",
    "read_table",
]
