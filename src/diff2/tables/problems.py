"""All that is wrong with a schema or a table, said at once.

>>> problems = Problems("people.csv")
>>> problems.add("column 'age'", "is not in the table", "leave it out of the schema")
>>> problems.add("the table", "holds fewer than 50 records", "gather more")
>>> problems.refuse()
Traceback (most recent call last):
diff2.errors.InvalidArgument: people.csv cannot be used as it is:
- column 'age' is not in the table; leave it out of the schema
- the table holds fewer than 50 records; gather more
"""

from ..errors import InvalidArgument


class Problems:
    """Gathers problems, each with its place and its remedy. No text holds a value of a record or a count of them."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.lines: list[str] = []

    def add(self, place: str, problem: str, remedy: str) -> None:
        """Note one problem; the same one is noted once."""
        line = f"- {place} {problem}; {remedy}"
        if line not in self.lines:
            self.lines.append(line)

    def refuse(self) -> None:
        """Raise one error with all problems, if there are any."""
        if self.lines:
            raise InvalidArgument("\n".join([f"{self.what} cannot be used as it is:", *self.lines]))
