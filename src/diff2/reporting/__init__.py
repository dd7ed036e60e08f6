"""What others may rely on: the verdict on a run, and a page, a card and a document that state it."""
