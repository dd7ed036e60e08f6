r"""Whole numbers that the server can add and cannot read: the BFV scheme of TenSEAL, and a check of the sum.

All sites share one secret file; the server has nothing of it. A site packs the whole numbers of its share, 4,096 to a
ciphertext, into the integers modulo a prime t of 60 bits; the server adds ciphertexts; whoever has the secret decrypts
the sum, which is exact:

* it does not wrap: no share is longer than ``longest_share`` says (no draw of the noise exceeds 8.58 deviations), and a
  release whose sum could exceed t/2 is refused beforehand;
* it decrypts correctly, for certain: the error of a fresh (symmetric) ciphertext is at most 22, counting the rounding
  of the plaintext; that of a sum of P is at most 22 P, which decryption rounds away while 22 P t < q/2 with
  :math:`q > 2^{71}`, so up to :math:`P = 64`.

Encryption hides, it does not protect from change: a server could add something, leave a site out or send an old sum. So
one further number goes with each share: a tag :math:`\sum_i r_i k_{p,i} + s_p \bmod t` with :math:`r_i` (56 bits) and
:math:`s_p` drawn from the shared secret for this question. Tags add up like the shares; a sum that is not exactly that
of all sites' answers to this question has the right tag with a probability below :math:`2^{-55}`.

Questions travel under AES-256-GCM with the same secret: the server does not see the model either. Security is that of
the parameters (128 bits) against whoever has no copy of the secret; a site that gives it to the server gives away the
answers of all sites, which then have their own noise alone.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InvalidArgument
from ...privacy import NoiseSource
from ..faults import BadAnswer, BadMessage, Refusal
from ..wire.messages import Message, digest, read, write

DEGREE = 4096  # of the polynomials, and numbers in a ciphertext
MODULUS = 1152921504606830593  # t, a prime that is 1 modulo 2 * DEGREE
LARGEST = MODULUS / 2
SECRET_BYTES, NONCE_BYTES = 32, 12
SEALED, CIPHERTEXTS, TOTAL, MODEL, TAKEN = "sealed", "ciphertexts", "total", "model", "taken"
BOX = "box"
ASSOCIATED = b"diff2 sealed question"


class SiteKeys:
    """What all sites share and the server must never have."""

    def __init__(self, context: Any, secret: bytes):
        self._context = context  # of TenSEAL, with the secret key
        self._secret = secret
        self._streams = NoiseSource(secret, private=True)

    @classmethod
    def generate(cls) -> SiteKeys:
        """Return new keys, from the operating system."""
        return cls(_new_context(), secrets.token_bytes(SECRET_BYTES))

    @classmethod
    def load(cls, path: Path) -> SiteKeys:
        """Read what :meth:`save` wrote."""
        tenseal = _tenseal()
        try:
            message = read(path.read_bytes())
            arrays = {name: bytes(array) for name, array in message.arrays.items()}
            context = tenseal.context_from(arrays["context"])
            if message.kind != "site keys" or len(arrays["secret"]) != SECRET_BYTES or not context.is_private():
                raise BadMessage("it holds something else")
            return cls(context, arrays["secret"])
        except FileNotFoundError:
            raise InvalidArgument(f"no keys at {path}; they come from whoever made them for all sites") from None
        except (BadMessage, KeyError, ValueError, RuntimeError) as error:
            raise InvalidArgument(f"{path} holds no keys of sites ({error})") from None

    def save(self, path: Path) -> None:
        """Write the keys to a file that its owner alone can read. It goes to every site, and to nobody else."""
        context = self._context.serialize(save_secret_key=True, save_galois_keys=False, save_relin_keys=False)
        arrays = {"context": _bytes(context), "secret": _bytes(self._secret)}
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(write(Message("site keys", {}, arrays)))

    @property
    def fingerprint(self) -> str:
        """By which sites see that they have the same keys; says nothing about them."""
        return hashlib.sha256(b"diff2 fingerprint" + self._secret).hexdigest()[:16]

    def seal(self, payload: bytes) -> bytes:
        """Return a question as a message that sites alone can read."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        box = nonce + _aes(self._secret).encrypt(nonce, payload, ASSOCIATED)
        return write(Message(SEALED, {}, {BOX: _bytes(box)}))

    def unseal(self, message: Message) -> bytes:
        """Return the question in such a message; refuse what no site has sealed."""
        from cryptography.exceptions import InvalidTag

        box = bytes(message.arrays.get(BOX, b""))
        try:
            return bytes(_aes(self._secret).decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], ASSOCIATED))
        except (InvalidTag, ValueError):
            raise Refusal("the question was sealed with other keys than this site's, or was changed") from None

    def encrypt(self, steps: np.ndarray, request: str, site: str) -> dict[str, np.ndarray]:
        """Return a share, with its tag, as ciphertexts."""
        tenseal = _tenseal()
        tag = (self._weighted(steps, request) + self._pad(request, site)) % MODULUS
        numbers = [*steps.tolist(), _centred(tag)]
        found = {}
        for i in range(ciphertexts(len(steps))):
            vector = tenseal.bfv_vector(self._context, numbers[i * DEGREE : (i + 1) * DEGREE])
            found[str(i)] = _bytes(vector.serialize())
        return found

    def decrypt(self, arrays: Mapping[str, np.ndarray], count: int, request: str, sites: Iterable[str]) -> np.ndarray:
        """Return the sum of the shares of exactly these sites, ``count`` numbers; refuse every other."""
        tenseal, numbers = _tenseal(), list[int]()
        if set(arrays) != {str(i) for i in range(ciphertexts(count))}:
            raise BadAnswer(f"the server sent {len(arrays)} ciphertexts, expected {ciphertexts(count)}")
        try:
            for i in range(ciphertexts(count)):
                numbers += tenseal.bfv_vector_from(self._context, bytes(arrays[str(i)])).decrypt()
        except (ValueError, RuntimeError) as error:
            raise BadAnswer(f"what the server sent is not a ciphertext of these keys ({error})") from None
        if len(numbers) != count + 1:
            raise BadAnswer(f"the server sent a sum of {len(numbers) - 1} numbers, expected {count}")
        steps = np.array(numbers[:-1], dtype=np.int64)
        pads = sum(self._pad(request, site) for site in sites)
        if (numbers[-1] - self._weighted(steps, request) - pads) % MODULUS:
            raise BadAnswer(
                "the sum that the server sent is not that of all sites' answers to this question: it was changed, a "
                "site was left out, or a site has other keys. Nothing of it is used"
            )
        return steps

    def _weighted(self, steps: np.ndarray, request: str) -> int:
        words = np.frombuffer(self._streams.bytes(8 * len(steps), "tag", request), dtype="<u8") >> np.uint64(8)
        return int(np.dot(words.astype(object), steps.astype(object))) % MODULUS

    def _pad(self, request: str, site: str) -> int:
        return int.from_bytes(self._streams.bytes(16, "pad", request, site), "big") % MODULUS


def added(answers: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the sum of ciphertexts, as the server computes it: without any key."""
    tenseal, context = _tenseal(), _bare_context()
    names = set(answers[0])
    if any(set(arrays) != names for arrays in answers):
        raise BadAnswer("the sites sent different numbers of ciphertexts")
    total = {}
    for name in sorted(names):
        try:
            vectors = [tenseal.bfv_vector_from(context, bytes(arrays[name])) for arrays in answers]
            result = vectors[0]
            for vector in vectors[1:]:
                result = result + vector
            total[name] = _bytes(result.serialize())
        except (ValueError, RuntimeError) as error:
            raise BadAnswer(f"a site sent what is not a ciphertext ({error})") from None
    return total


def sealed_answer(
    keys: SiteKeys | None, site: str, message: Message, payload: bytes, ask: Callable[[Message, bytes], bytes]
) -> bytes:
    """Return a site's answer to a sealed message: what it would have answered, encrypted."""
    if keys is None:
        raise Refusal("this site has no keys for sealed questions; name them in its site.toml: [site] keys = '...'")
    inner = keys.unseal(message)
    answer = read(ask(read(inner), inner))
    if "steps" not in answer.arrays:
        return write(answer)
    arrays = keys.encrypt(answer.arrays["steps"], digest(inner), site)
    together = answer.fields["together"]  # for the server: the only sum that this answer may become a part of
    return write(Message(CIPHERTEXTS, {"request": digest(payload), "together": together}, arrays))


def take_model(message: Message, run: str, directory: Path) -> Message:
    """Keep the model that the lead has sent, as ``RUN.npz``."""
    params = message.arrays.get("params")
    if params is None or params.ndim != 1 or not np.isfinite(params).all():
        raise BadMessage("the model is not a vector of finite numbers")
    np.savez(directory / f"{run}.npz", params=params)
    return Message(TAKEN, {"run": run})


def ciphertexts(count: int) -> int:
    """Return how many ciphertexts hold so many numbers and a tag.

    >>> ciphertexts(100), ciphertexts(4095), ciphertexts(4096)
    (1, 1, 2)
    """
    return math.ceil((count + 1) / DEGREE)


def _centred(number: int) -> int:
    return number - MODULUS if number > MODULUS // 2 else number


def _bytes(data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype=np.uint8)


def _new_context() -> Any:
    tenseal = _tenseal()
    return tenseal.context(
        tenseal.SCHEME_TYPE.BFV,
        poly_modulus_degree=DEGREE,
        plain_modulus=MODULUS,
        encryption_type=tenseal.ENCRYPTION_TYPE.SYMMETRIC,
    )


@lru_cache(maxsize=1)
def _bare_context() -> Any:
    """Return the parameters, with a key that is thrown away: all that adding needs."""
    tenseal = _tenseal()
    data = _new_context().serialize(save_secret_key=False, save_galois_keys=False, save_relin_keys=False)
    return tenseal.context_from(data)


def _tenseal() -> Any:
    try:
        import tenseal
    except ImportError as error:
        raise InvalidArgument(
            f"secure_aggregation='tenseal' needs TenSEAL ({error}); install it with: pip install 'diff2[secure]'"
        ) from None
    return tenseal


def _aes(secret: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(hashlib.sha256(b"diff2 questions" + secret).digest())
