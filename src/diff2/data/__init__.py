"""From tables to clients: reading, checking, scaling."""
