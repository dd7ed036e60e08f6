"""A run: built, looped over, kept in a directory, and what it leaves behind."""
