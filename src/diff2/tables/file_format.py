"""How CSV files are written: delimiter, encoding, decimal sign."""

import codecs
from dataclasses import dataclass

from ..errors import InvalidArgument


@dataclass(frozen=True)
class FileFormat:
    """How CSV files are written."""

    delimiter: str = ","
    encoding: str = "utf-8"
    decimal: str = "."

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise InvalidArgument(f"expected delimiter to be one character, got delimiter={self.delimiter!r}")
        if self.decimal not in (".", ",") or self.decimal == self.delimiter:
            raise InvalidArgument(
                f"expected decimal to be '.' or ',' and not the delimiter, got decimal={self.decimal!r}"
            )
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise InvalidArgument(
                f"unknown encoding {self.encoding!r}; usual ones are utf-8, latin-1, cp1252 and utf-16"
            ) from None

    @property
    def codec(self) -> str:
        """The encoding, which takes a mark at the start of the file for what it is."""
        return "utf-8-sig" if codecs.lookup(self.encoding).name == "utf-8" else self.encoding
