"""From the publisher's archive to one CSV: members joined in order, a header first, every value as it was."""

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from ..errors import Diff2Error
from .catalogue import Entry

DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, zipfile.BadZipFile, tarfile.TarError, NotImplementedError)
GZIP_MAGIC = b"\x1f\x8b"


def csv_of(entry: Entry, archive: Path) -> bytes:
    """Return the table of a zip, tar or gzip file, whichever it is."""
    try:
        parts = _members(entry, archive)
    except DAMAGED as error:
        raise Diff2Error(f"{entry.source.archive} is damaged ({type(error).__name__})") from None
    header = ",".join(entry.columns).encode()
    lines = [header, b"\n"]
    for name, content in parts:
        content = content.replace(b"\r\n", b"\n")
        first, _, rest = content.partition(b"\n")
        got = first.decode("utf-8", "replace").split(",")
        if len(got) != len(entry.columns) or (entry.source.headed and first != header):
            names = f", {', '.join(entry.columns)}" if entry.source.headed and len(entry.columns) < 20 else ""
            raise Diff2Error(
                f"{name} in {entry.source.archive} has other columns than {entry.name}: expected "
                f"{len(entry.columns)}{names}, got {len(got)}, the first line beginning {first[:60]!r}"
            )
        body = rest if entry.source.headed else content
        lines += [body, b"" if body.endswith(b"\n") or not body else b"\n"]
    return b"".join(lines)


def _members(entry: Entry, archive: Path) -> list[tuple[str, bytes]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            return _chosen(entry, packed.namelist(), packed.read)
    if tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tar:

            def read(name: str) -> bytes:
                file = tar.extractfile(name)
                return b"" if file is None else file.read()

            return _chosen(entry, [member.name for member in tar.getmembers() if member.isfile()], read)
    return [(entry.source.archive, gzip.decompress(archive.read_bytes()))]


def _chosen(entry: Entry, names: list[str], read: Callable[[str], bytes]) -> list[tuple[str, bytes]]:
    """Return the members asked for, by the last part of their path; one that is gzip is unpacked."""
    parts = []
    for pattern in entry.source.members:
        fitting = [name for name in names if fnmatchcase(PurePosixPath(name).name, PurePosixPath(pattern).name)]
        if not fitting:
            raise Diff2Error(f"{entry.source.archive} has no {pattern}; it is not the archive of {entry.name}")
        for name in sorted(fitting):
            content = read(name)
            parts.append((name, gzip.decompress(content) if content.startswith(GZIP_MAGIC) else content))
    return parts
