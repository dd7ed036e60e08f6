"""One call from a table to a private model: `fit`."""
