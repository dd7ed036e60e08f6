r"""Where the noise comes from: a cryptographic stream, one for each run, round, purpose and value.

A stream is SHAKE-256 over a 32-byte run key and a label. Without the key it cannot be told from coin tosses; with the
key a round that is computed again after a crash gets the *same* noise, hence the same release and not a second one.
So whoever has the key can take the noise off: it lives in memory, in the checkpoint of an unfinished run, and nowhere
else.

A keyed digest of the value under the noise is part of the label. If the value comes out differently the second time,
for whatever reason, it gets independent noise; two releases with the same noise would give the difference of the values
away. That two values are *equal* does show, so what is asked is part of the digest too.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence

from .._validate import at_least

KEY_BYTES = 32
Content = bytes | memoryview


class NoiseSource:
    """Keyed streams of random bits. ``private`` is false where the key can be guessed, that is: was seeded."""

    def __init__(self, key: bytes, *, private: bool, trees: Mapping[str, Sequence[str]] | None = None):
        self.key = key
        self.private = private
        # Of the open tree of each purpose: digests of the values up to each of its leaves. As secret as the key.
        self.trees = {purpose: list(digests) for purpose, digests in (trees or {}).items()}

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

    def digest(self, *content: Content) -> str:
        """Return a hash of values that reveals nothing without the key.

        Empty where the source is seeded: such a run is not private, and should have the same noise on machines that
        round differently.
        """
        if not self.private:
            return ""
        digest = hashlib.blake2b(key=self.key, digest_size=KEY_BYTES)
        for part in content:
            digest.update(memoryview(part).nbytes.to_bytes(8, "big"))
            digest.update(part)
        return digest.hexdigest()

    def integer(self, bound: int, *label: object) -> int:
        """Return a whole number uniform in [0, bound), up to a bias below bound / 2^128."""
        return int.from_bytes(self.bytes(16 + (bound.bit_length() + 7) // 8, *label), "big") % bound
