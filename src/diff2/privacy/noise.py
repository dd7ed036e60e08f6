r"""Where the noise comes from: a cryptographic stream, one for each (run, round, purpose).

A stream is SHAKE-256 over a 32-byte run key and a label. Without the key nobody can tell it from coin tosses; with the
key a round that is computed again after a crash gets the *same* noise, hence the same release and not a second one.
So whoever has the key can take the noise off: it lives in memory, in the checkpoint of an unfinished run, and nowhere
else.
"""

from __future__ import annotations

import hashlib
import secrets

from .._validate import at_least

KEY_BYTES = 32


class NoiseSource:
    """Keyed streams of random bits. ``private`` is false where the key can be guessed, that is: was seeded."""

    def __init__(self, key: bytes, *, private: bool):
        self.key = key
        self.private = private

    @classmethod
    def from_system(cls) -> NoiseSource:
        """A fresh key from the operating system."""
        return cls(secrets.token_bytes(KEY_BYTES), private=True)

    @classmethod
    def from_seed(cls, seed: int) -> NoiseSource:
        """The same streams every time: for tests and experiments, never for a private release."""
        at_least("seed", seed, 0)
        return cls(hashlib.sha256(f"diff2 seed {int(seed)}".encode()).digest(), private=False)

    def bytes(self, count: int, *label: object) -> bytes:
        """Return ``count`` bytes of the stream with this label."""
        # The length of each part stands before it, so that no two labels run together.
        parts = [str(part).encode() for part in label]
        text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hashlib.shake_256(self.key + text).digest(count)

    def integer(self, bound: int, *label: object) -> int:
        """Return a whole number uniform in [0, bound), up to a bias below bound / 2^128."""
        return int.from_bytes(self.bytes(16 + (bound.bit_length() + 7) // 8, *label), "big") % bound
