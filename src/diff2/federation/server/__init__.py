"""The server's side of a run. The names of its files are here, for whoever reads them without PyTorch."""

PROGRESS, OUTCOME = "progress.json", "outcome.json"
