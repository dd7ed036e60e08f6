"""Values that must not be found where they do not belong, and a search for them in bytes and in folders.

A value is found as text (eight digits or more), as a little-endian double at any offset, as two neighbours of a vector
in single precision at any offset, and, where it was put on a grid, as a number of steps. Also inside of zip files.
"""

import io
import itertools
import re
import zipfile

import numpy as np

NUMBER = re.compile(rb"[0-9]+\.[0-9]+(?:[eE][-+]?[0-9]+)?")
TEXT, DOUBLE, SINGLE = 1e-9, 1e-11, 3e-7  # how close, relative
LEAST = 1e-6  # smaller values, zeros above all, are nothing to recognise


class Canaries:
    """Vectors to look for; signs do not matter."""

    def __init__(self):
        self._names, self._values, self._pairs, self._steps = [], [], [], {}
        self._sorted = None

    def add(self, name, vector, grids=()):
        """Look for the entries of a vector, and for their numbers of steps on these grids."""
        values, self._sorted = np.abs(np.asarray(vector, dtype=np.float64).reshape(-1)), None
        self._pairs += [pair for pair in itertools.pairwise(values) if min(pair) > LEAST]
        self._values += [value for value in values if value > LEAST]
        self._names += [name] * int((values > LEAST).sum())
        for grid in grids:
            self._steps |= {int(step): name for step in np.rint(values / grid) if step > 1e6}

    def __len__(self):
        return len(self._values)

    def search(self, data):
        """Return what was found in these bytes: names with the way each was written."""
        if self._sorted is None:
            order = np.argsort(self._values)
            pairs, steps = np.asarray(sorted(self._pairs)), np.fromiter(self._steps, dtype=np.int64)
            self._sorted = np.asarray(self._values)[order], np.asarray(self._names)[order], pairs, np.sort(steps)
        known, names, pairs, steps = self._sorted
        texts = [number for number in NUMBER.findall(data) if len(number.split(b"e")[0].strip(b"0.")) >= 8]
        found = {(names[i], "text") for i in _near(known, [float(number) for number in texts], TEXT)}
        for offset in range(8):
            found |= {(names[i], "double") for i in _near(known, _numbers(data, "<f8", offset), DOUBLE)}
        for offset in range(4):
            found |= {("two neighbours", "single")} if _neighbours(pairs, _numbers(data, "<f4", offset)) else set()
        if len(steps):
            for offset in range(8):
                whole = np.abs(np.frombuffer(data, "<i8", max(0, len(data) - offset) // 8, min(offset, len(data))))
                place = np.minimum(np.searchsorted(steps, whole), len(steps) - 1)
                found |= {(self._steps[int(step)], "steps") for step in whole[steps[place] == whole]}
        return found

    def search_files(self, folder, leave_out=lambda path: False):
        """Return what was found in the files of a folder: paths with findings; and how many bytes were searched."""
        found, searched = {}, 0
        for path in sorted(folder.rglob("*")):
            if not path.is_file() or leave_out(path):
                continue
            for name, data in _unpacked(str(path.relative_to(folder)), path.read_bytes()):
                searched += len(data)
                here = self.search(data) | self.search(name.encode())
                found |= {name: here} if here else {}
        return found, searched


def _neighbours(pairs, values):
    """Whether two neighbours among the values are a known pair."""
    for i in _near(pairs[:, 0], values[:-1], SINGLE, of_values=True):
        low, high = np.searchsorted(pairs[:, 0], values[i] * np.array([1 - 2 * SINGLE, 1 + 2 * SINGLE]))
        close = np.abs(pairs[low:high] - values[i : i + 2]) <= SINGLE * pairs[low:high]
        if close.all(axis=1).any():
            return True
    return False


def _unpacked(name, data):
    yield name, data
    if data[:2] == b"PK" and zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.namelist():
                yield from _unpacked(f"{name}/{member}", archive.read(member))


def _numbers(data, dtype, offset):
    size = np.dtype(dtype).itemsize
    values = np.frombuffer(data, dtype, max(0, len(data) - offset) // size, min(offset, len(data)))
    with np.errstate(invalid="ignore"):
        return np.abs(np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0))


def _near(known, values, tolerance, of_values=False):
    """Return the indices of the known values that are close to some value; or of the values close to a known one."""
    values = np.asarray(values, dtype=np.float64)
    if not len(values):
        return np.array([], dtype=int)
    right = np.minimum(np.searchsorted(known, values), len(known) - 1)
    left = np.maximum(right - 1, 0)
    nearest = np.where(np.abs(known[left] - values) < np.abs(known[right] - values), left, right)
    close = np.abs(known[nearest] - values) <= tolerance * known[nearest]
    return np.flatnonzero(close) if of_values else np.unique(nearest[close])
