"""A run: built, looped over, kept in a directory, and what it leaves behind."""

OUTPUTS = ("last", "uniform")  # the iterate that a run returns
