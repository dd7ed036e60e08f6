"""Fetching a table from its publisher: only on request, checked, and in place only when it is complete.

The archive goes to a temporary file and is thrown away; the table is written beside its final place and renamed. So a
fetch that is interrupted leaves nothing behind but, if it was killed, a temporary file that a later fetch removes, and
two at once do each other no harm.
"""

import errno
import gzip
import hashlib
import http.client
import os
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO

from .._files import AnyPath
from .._version import __version__
from ..errors import Diff2Error
from .catalogue import Entry
from .datasets import check_content, verified_csv
from .places import cache_folder

CHUNK = 1 << 16
TIMEOUT = 60.0  # seconds without a byte
STALE = 24 * 3600.0  # seconds after which a temporary file belongs to nobody
SUFFIX = ".part"

Report = Callable[[int, int | None], None]  # bytes so far, bytes in all if the server says so
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, zipfile.BadZipFile, tarfile.TarError, NotImplementedError)
GZIP_MAGIC = b"\x1f\x8b"


def fetch(entry: Entry, folder: AnyPath | None = None, report: Report = lambda done, total: None) -> Path:
    """Return where the table is, after fetching it if ``folder`` (by default the user's cache) does not hold it yet."""
    target = (cache_folder() if folder is None else Path(folder)) / entry.file
    failures = []
    with _disk_errors(target.parent, entry):
        if _is_good(entry, target):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(target)
        for address in entry.source.addresses:
            try:
                content = _table_from(entry, address, target, report)
            except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
                failures.append(f"{address}: {_reason(error)}")
            except Diff2Error as error:
                failures.append(f"{address}: {error}")
            else:
                with _temporary(target) as file:
                    # No name and no time inside, so that the same table gives the same file.
                    file.write(gzip.compress(content, mtime=0))
                    file.flush()
                    os.fsync(file.fileno())
                    file.close()
                    os.chmod(file.name, 0o644)
                    os.replace(file.name, target)
                return target
    raise Diff2Error(
        f"{entry.name} could not be fetched. {'; '.join(failures)}. Try again later, or put {entry.file} with sha256 "
        f"{entry.provenance.csv_sha256} of its uncompressed bytes into {target.parent}"
    )


def _is_good(entry: Entry, path: Path) -> bool:
    try:
        verified_csv(entry, path)
    except (Diff2Error, FileNotFoundError):
        return False
    return True


def _table_from(entry: Entry, address: str, target: Path, report: Report) -> bytes:
    """Download an archive, check it, and return the table in it, checked as well."""
    with _temporary(target) as file:
        digest = _download(address, file, report)
        expected = entry.provenance.archive_sha256
        if expected is not None and digest != expected:
            raise Diff2Error(
                f"the download is not {entry.source.archive} as published: expected sha256 {expected}, got {digest}"
            )
        content = csv_of(entry, Path(file.name))
    check_content(entry, content, f"the table in {entry.source.archive}", "the publisher may have changed it")
    return content


def _download(address: str, file: IO[bytes], report: Report) -> str:
    """Write what an address serves to a file, and return its sha256."""
    request = urllib.request.Request(address, headers={"User-Agent": f"diff2/{__version__}"})
    digest, done = hashlib.sha256(), 0
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        length = answer.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        report(0, total)
        while chunk := answer.read(CHUNK):
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            report(done, total)
    if total is not None and done < total:
        raise Diff2Error(f"the connection ended after {done:,} of {total:,} bytes")
    file.flush()
    return digest.hexdigest()


@contextmanager
def _temporary(target: Path) -> Iterator[IO[bytes]]:
    """Open a new file beside the target; it is gone at the end unless it was renamed."""
    with tempfile.NamedTemporaryFile(prefix=f".{target.name}.", suffix=SUFFIX, dir=target.parent, delete=False) as file:
        try:
            yield file
        finally:
            Path(file.name).unlink(missing_ok=True)


def _remove_stale(target: Path) -> None:
    """Remove what killed fetches of the same table left behind."""
    for path in target.parent.glob(f".{target.name}.*{SUFFIX}"):
        with suppress(FileNotFoundError):  # another fetch has renamed it
            if time.time() - path.stat().st_mtime > STALE:
                path.unlink()


@contextmanager
def _disk_errors(folder: Path, entry: Entry) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Diff2Error(
                f"no space left in {folder} for {entry.file}; free some, or choose another folder: diff2 data fetch "
                f"{entry.name} --to DIR"
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise Diff2Error(
                f"cannot write to {folder} ({error.strerror}); choose another folder: diff2 data fetch {entry.name} "
                "--to DIR"
            ) from None
        raise


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return f"no connection ({error.reason})"
    return f"the connection broke off ({type(error).__name__})"


def csv_of(entry: Entry, archive: Path) -> bytes:
    """Return the table in a zip, tar or gzip file: members joined in order, a header first, every value as it was."""
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
