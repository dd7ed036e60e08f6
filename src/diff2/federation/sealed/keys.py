r"""Whole numbers that the server can add but not read: the BFV scheme of TenSEAL, and a check of the sum.

All sites share one secret file; the server does not have it. A site packs the whole numbers of its answer, 4,096 per
ciphertext, into the integers modulo a prime t of 60 bits; the server adds ciphertexts; a site with the secret decrypts
the sum, which is exact:

* it does not wrap: no answer is longer than ``max_answer_norm`` (no draw of the noise exceeds 8.58 deviations), and a
  release whose sum could exceed t/2 is refused beforehand;
* it always decrypts correctly: the error of a fresh (symmetric) ciphertext is at most 22, including the rounding of the
  plaintext; that of a sum of P is at most 22 P, which decryption rounds away while 22 P t < q/2 with
  :math:`q > 2^{71}`, so up to :math:`P = 64`.

Encryption hides values but does not prevent tampering: a server could add something, omit a site or replay an old sum.
So each answer carries one more number, a tag :math:`\sum_i r_i k_{p,i} + s_p \bmod t` with :math:`r_i` (56 bits) and
:math:`s_p` drawn from the shared secret for this question. Tags add up like the answers; a sum that is not exactly that
of all sites' answers to this question has the right tag with a probability below :math:`2^{-55}`.

Questions are encrypted by AES-256-GCM with the same secret: the server does not see the model either. The parameters
give 128 bits of security against anyone without the secret. A site that gives it to the server exposes the answers of
all sites, which are then protected by their own noise alone.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..._files import write_whole
from ...errors import InvalidArgument
from ...privacy import NoiseSource
from ..faults import BadAnswer, BadMessage, Refusal
from ..wire.messages import Message, digest, packed, read, write

DEGREE = 4096  # of the polynomials, and numbers in a ciphertext
MODULUS = 1152921504606830593  # t, a prime that is 1 modulo 2 * DEGREE
MAX_TOTAL = MODULUS / 2
SECRET_BYTES, NONCE_BYTES = 32, 12
SEALED, CIPHERTEXTS, TOTAL, MODEL, STORED = "sealed", "ciphertexts", "total", "model", "stored"
BOX = "box"
ASSOCIATED = b"diff2 sealed question"
NO_KEYS = "this site has no keys for sealed runs; name their file in its site.toml: [site] keys = '...'"


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
                raise BadMessage("not a key file")
            return cls(context, arrays["secret"])
        except FileNotFoundError:
            raise InvalidArgument(f"no keys at {path}; get the file from the site that generated it") from None
        except (BadMessage, KeyError, ValueError, RuntimeError) as error:
            raise InvalidArgument(f"{path} is not a key file ({error})") from None

    def save(self, path: Path) -> None:
        """Write the keys to a new file that only its owner can read. It goes to every site, and to nobody else."""
        context = self._context.serialize(save_secret_key=True, save_galois_keys=False, save_relin_keys=False)
        arrays = {"context": packed(context), "secret": packed(self._secret)}
        if path.exists():
            raise InvalidArgument(f"{path} exists: keys are never overwritten; choose another file")
        write_whole(path, write(Message("site keys", {}, arrays)), secret=True)

    @property
    def fingerprint(self) -> str:
        """Lets sites check that they have the same keys; reveals nothing about them."""
        return hashlib.sha256(b"diff2 fingerprint" + self._secret).hexdigest()[:16]

    def seal(self, payload: bytes) -> bytes:
        """Return a question as a message that only sites can read."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        box = nonce + _aes(self._secret).encrypt(nonce, payload, ASSOCIATED)
        return write(Message(SEALED, {}, {BOX: packed(box)}))

    def unseal(self, message: Message) -> bytes:
        """Return the question in a sealed message; refuse one that no site has sealed."""
        from cryptography.exceptions import InvalidTag

        box = bytes(message.arrays.get(BOX, b""))
        try:
            return bytes(_aes(self._secret).decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], ASSOCIATED))
        except (InvalidTag, ValueError):
            raise Refusal("the question was sealed with other keys than this site's, or was tampered with") from None

    def encrypt(self, steps: np.ndarray, request: str, site: str) -> dict[str, np.ndarray]:
        """Return a site's answer, with its tag, as ciphertexts."""
        tenseal = _tenseal()
        tag = (self._weighted(steps, request) + self._pad(request, site)) % MODULUS
        numbers = [*steps.tolist(), _centred(tag)]
        found = {}
        for i in range(ciphertexts(len(steps))):
            vector = tenseal.bfv_vector(self._context, numbers[i * DEGREE : (i + 1) * DEGREE])
            found[str(i)] = packed(vector.serialize())
        return found

    def decrypt(self, arrays: Mapping[str, np.ndarray], count: int, request: str, sites: Iterable[str]) -> np.ndarray:
        """Return the sum of the answers of exactly these sites, ``count`` numbers; refuse any other sum."""
        tenseal, numbers = _tenseal(), list[int]()
        if set(arrays) != {str(i) for i in range(ciphertexts(count))}:
            raise BadAnswer(f"the server sent {len(arrays)} ciphertexts, expected {ciphertexts(count)}")
        try:
            for i in range(ciphertexts(count)):
                numbers += tenseal.bfv_vector_from(self._context, bytes(arrays[str(i)])).decrypt()
        except (ValueError, RuntimeError) as error:
            raise BadAnswer(f"the server sent something that is not a ciphertext under these keys ({error})") from None
        if len(numbers) != count + 1:
            raise BadAnswer(f"the server sent a sum of {len(numbers) - 1} numbers, expected {count}")
        steps = np.array(numbers[:-1], dtype=np.int64)
        pads = sum(self._pad(request, site) for site in sites)
        if (numbers[-1] - self._weighted(steps, request) - pads) % MODULUS:
            raise BadAnswer(
                "the sum that the server sent is not the sum of all sites' answers to this question: it was changed, "
                "a site was left out, or a site has other keys. It is not used"
            )
        return steps

    def _weighted(self, steps: np.ndarray, request: str) -> int:
        words = np.frombuffer(self._streams.bytes(8 * len(steps), "tag", request), dtype="<u8") >> np.uint64(8)
        return int(np.dot(words.astype(object), steps.astype(object))) % MODULUS

    def _pad(self, request: str, site: str) -> int:
        return int.from_bytes(self._streams.bytes(16, "pad", request, site), "big") % MODULUS


def added(answers: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the sum of ciphertexts, as the server computes it, without any key."""
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
            total[name] = packed(result.serialize())
        except (ValueError, RuntimeError) as error:
            raise BadAnswer(f"a site sent something that is not a ciphertext ({error})") from None
    return total


def sealed_answer(
    keys: SiteKeys | None, site: str, message: Message, payload: bytes, ask: Callable[[Message, bytes], bytes]
) -> bytes:
    """Return a site's answer to a sealed message, encrypted."""
    if keys is None:
        raise Refusal(NO_KEYS)
    inner = keys.unseal(message)
    answer = read(ask(read(inner), inner))
    if "steps" not in answer.arrays:
        return write(answer)
    arrays = keys.encrypt(answer.arrays["steps"], digest(inner), site)
    together = answer.fields["together"]  # tells the server the only sum that this answer may be added to
    return write(Message(CIPHERTEXTS, {"request": digest(payload), "together": together}, arrays))


def store_model(message: Message, run: str, directory: Path) -> Message:
    """Store the model that the coordinator has sent, as ``RUN.npz``."""
    params = message.arrays.get("params")
    if params is None or params.ndim != 1 or not np.isfinite(params).all():
        raise BadMessage("the model is not a vector of finite numbers")
    np.savez(directory / f"{run}.npz", params=params)
    return Message(STORED, {"run": run})


def ciphertexts(count: int) -> int:
    """Return how many ciphertexts hold this many numbers and a tag.

    >>> ciphertexts(100), ciphertexts(4095), ciphertexts(4096)
    (1, 1, 2)
    """
    return math.ceil((count + 1) / DEGREE)


def _centred(number: int) -> int:
    return number - MODULUS if number > MODULUS // 2 else number


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
    """Return the parameters without any key: all that addition needs."""
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
