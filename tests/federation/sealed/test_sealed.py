"""Secure aggregation: the sum is exact and has the noise it should, the server can read nothing and change nothing."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import diff2
from catalogue import CATALOGUE, SIZES
from diff2.errors import InvalidArgument
from diff2.federation.faults import BadAnswer, Refusal, SiteRefused
from diff2.federation.own_noise.noise import TAIL, max_answer_norm, scale_of
from diff2.federation.sealed import keys as sealed
from diff2.federation.sealed.cohort import AddingServer, distribute_model
from diff2.federation.sealed.keys import DEGREE, MAX_TOTAL, MODULUS, SiteKeys, added
from diff2.federation.server.run import close_run
from diff2.federation.site.policy import read_site_file
from diff2.federation.site.site import site_from_file
from diff2.federation.wire.messages import Message, digest, read, write
from diff2.federation.wire.request import ASK
from diff2.privacy.trust import MOST_SEALED, Trust
from federated import (
    ANYTHING,
    NAMES,
    RUN,
    START,
    Killed,
    Recorder,
    Truth,
    agreement_of,
    answer_labels,
    approving,
    entries,
    federated_run,
    gradient,
    killed_in,
    make_sites,
    opened,
    own_noise,
    quiet_prepare,
    request,
    same_result,
    widened,
    words,
    write_sites,
)
from stubs import is_normal

pytestmark = pytest.mark.filterwarnings("ignore::diff2.WeakDeltaWarning")

REQUEST = digest(b"a question")
QUICK = {"recursive", "srnsgd", "diff2, 2 of 3 clients"}


@pytest.fixture(scope="module")
def keys():
    return SiteKeys.generate()


@pytest.fixture(scope="module")
def others():
    return SiteKeys.generate()


def secret(name, honest=None, **changes):
    return own_noise(name, honest, "tenseal", **changes)


SECRET = secret("diff2", seed=None)
Z = SECRET.plan(SIZES).multipliers["gradient"]
QUESTION = write(request(gradient(), Z).message())


def sealed_run(agreement, directory, keys, sites=None, server=AddingServer, **options):
    """Train in this process, coordinated by a site; return the result and the transport below the server."""
    below = Recorder(approving(sites or make_sites(directory / "sites", keys=keys), agreement))
    adder = server(below)
    training = quiet_prepare(agreement, adder, directory / "coordinator", keys=keys, **options)
    result = training.run(progress=False)
    assert distribute_model(training, result.params, adder, keys, 5.0) == []
    assert close_run(training, adder, 5.0) == []
    return result, below


def total_of(keys, answers, request=REQUEST):
    encrypted = [keys.encrypt(np.array(answer), request, str(p)) for p, answer in enumerate(answers)]
    return keys.decrypt(added(encrypted), len(answers[0]), request, [str(p) for p in range(len(answers))])


class TestTheSum:
    @settings(max_examples=10, deadline=None)
    @given(
        answers=st.integers(1, 5).flatmap(
            lambda sites: st.lists(
                st.lists(st.integers(-int(MAX_TOTAL / 5), int(MAX_TOTAL / 5)), min_size=3, max_size=3),
                min_size=sites,
                max_size=sites,
            )
        )
    )
    def test_is_exact(self, keys, answers):
        assert total_of(keys, answers).tolist() == np.sum(np.array(answers, dtype=object), axis=0).tolist()

    @pytest.mark.parametrize("count", [1, DEGREE - 1, DEGREE, 2 * DEGREE + 7])
    def test_of_several_ciphertexts(self, keys, count):
        answers = np.random.default_rng(0).integers(-(2**57), 2**57, (3, count))
        assert np.array_equal(total_of(keys, answers), answers.sum(0))

    def test_of_as_many_sites_as_are_allowed(self, keys):
        """The worst case for decryption: the same ciphertext, hence the same error, again and again."""
        value = np.array([int(MAX_TOTAL) // MOST_SEALED, -int(MAX_TOTAL) // MOST_SEALED, 1, 0])
        one = keys.encrypt(value, REQUEST, "0")
        vectors = [sealed._tenseal().bfv_vector_from(keys._context, bytes(one["0"])) for _ in range(2)]
        for _ in range(MOST_SEALED - 1):
            vectors[0] = vectors[0] + vectors[1]
        assert vectors[0].decrypt()[:4] == (MOST_SEALED * value).tolist()

    def test_the_modulus_is_a_prime_that_packs(self):
        assert MODULUS % (2 * DEGREE) == 1
        assert MODULUS.bit_length() == 60
        assert all(pow(base, MODULUS - 1, MODULUS) == 1 for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37))
        # What decryption rounds away, for the 72 bits of the modulus of the ciphertexts.
        assert 22 * MOST_SEALED * MODULUS < 2**71

    def test_a_sum_that_could_wrap_is_refused_beforehand(self):
        agreement = secret("diff2")
        population = agreement.plan(SIZES).population

        def longest(multiplier, limit):
            asked = request(gradient(), multiplier)
            return 3 * max_answer_norm(population, 2, asked, scale_of(population, asked, 3), limit)

        # In grid steps: noise of z costs about 2^32 of them, values up to 1/z times n_min P / 2 as many.
        small = 2.0**-25
        with pytest.raises(InvalidArgument, match="Lower epsilon"):
            longest(small, MAX_TOTAL)
        assert longest(small, 2.0**62) >= MAX_TOTAL
        assert longest(4 * small, MAX_TOTAL) < MAX_TOTAL

    def test_no_draw_of_the_noise_is_longer_than_the_bound(self, keys):
        """TAIL is more than 8.58 deviations, the largest that a 53-bit uniform number can give."""
        assert math.sqrt(-2 * math.log(2.0**-53)) < 8.58 < TAIL


class TestNoise:
    @pytest.fixture(scope="class", params=["clients", "records"])
    @classmethod
    def total_noise(cls, request, keys, tmp_path_factory):
        """The noise in the decrypted sum of three sites, in units of what the ledger counts on."""
        algorithm = diff2.DPGD(1, 2.0, routine=diff2.GradientDescent(1.0))
        agreement = secret(algorithm, honest=2, weighting=request.param)
        agreement = widened(agreement)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", diff2.WeakDeltaWarning)
            result, below = sealed_run(agreement, tmp_path_factory.mktemp("wide"), keys)
            truth = Truth(agreement)
        boxes = [read(asked) for _, asked, _ in below.messages if read(asked).kind == sealed.SEALED]
        asked = read(keys.unseal(boxes[0]))
        value = torch.from_numpy(asked.arrays["params"]) - result.params  # the model moved by the released mean
        noise = value.numpy() - sum(truth.part(site, asked) for site in NAMES)
        return noise / result.ledger.releases[0].noise_std

    @pytest.mark.parametrize(("factor", "is_right"), [(1.0, True), (0.95, False), (1.05, False)])
    def test_in_the_decrypted_sum_it_is_that_of_three_sites(self, total_noise, factor, is_right):
        scale = math.sqrt(3 / 2) * factor
        assert len(total_noise) == 20_001
        assert is_normal(total_noise, scale) == is_right


class TestTheSameAsInTheOpen:
    @pytest.mark.parametrize("name", entries(set(CATALOGUE) - QUICK))
    def test_bytes(self, name, keys, tmp_path):
        if name == "recursive, client, 2 of 3 drawn":
            pytest.skip("is refused")
        result, _ = sealed_run(secret(name, honest=2), tmp_path / "sealed", keys)
        expected, _ = federated_run(own_noise(name, honest=2), tmp_path / "open")
        same_result(result, expected)
        assert result.ledger.epsilon_of_one() == expected.ledger.epsilon_of_one()

    def test_a_killed_run_is_resumed(self, keys, tmp_path):
        whole, _ = sealed_run(secret("bvr"), tmp_path / "whole", keys)
        with pytest.raises(Killed):
            sealed_run(secret("bvr"), tmp_path, keys, watch=killed_in(4))
        result, _ = sealed_run(secret("bvr"), tmp_path, keys, resume=True)
        same_result(result, whole)

    def test_every_site_has_the_model_in_the_end(self, keys, tmp_path):
        result, _ = sealed_run(secret("diff2"), tmp_path, keys)
        for name in NAMES:
            (path,) = (tmp_path / "sites" / name).glob("*.npz")
            assert np.array_equal(np.load(path)["params"], result.params.numpy())


class TestWhatTheServerSees:
    def test_ciphertexts_and_nothing_else(self, keys, tmp_path):
        agreement = secret("diff2", honest=2, seed=None)
        result, below = sealed_run(agreement, tmp_path, keys)
        assert result.ledger.guarantee().private
        sent = below.bytes
        found, truth = words(sent), Truth(agreement)
        boxes = {asked for _, asked, _ in below.messages if read(asked).kind == sealed.SEALED}
        inside = [read(keys.unseal(read(box))) for box in boxes]
        assert len(inside) == 7 + 1  # releases, and the model in the end
        for asked in inside:
            hidden = [asked.arrays["params"]]
            if asked.kind == ASK:
                hidden += [truth.part(site, asked) for site in NAMES]
            for values in hidden:
                assert values.tobytes() not in sent
                assert not any(value.tobytes() in found for value in values if value != 0)
        for _, asked, answer in below.messages:
            if read(asked).kind == sealed.SEALED and read(answer).kind != sealed.STORED:
                assert set(read(answer).fields) == {"request", "together"}
                assert {array.dtype for array in read(answer).arrays.values()} == {np.dtype(np.uint8)}
        assert keys._secret not in sent

    def test_its_counter_holds_all_that_the_sites_send(self, keys, tmp_path):
        counted = []
        _, below = sealed_run(secret("diff2"), tmp_path, keys, watch=counted.append)
        answers = [read(answer) for _, _, answer in below.messages]
        sent = [sum(array.nbytes for array in one.arrays.values()) for one in answers if one.kind == sealed.CIPHERTEXTS]
        assert sum(exchange.received for exchange in counted) == sum(sent) > 7 * 3 * 80_000

    def test_it_has_no_key(self, keys):
        context = sealed._bare_context()
        assert not context.is_private()
        vector = sealed._tenseal().bfv_vector_from(context, bytes(keys.encrypt(np.arange(3), REQUEST, "a")["0"]))
        with pytest.raises(ValueError, match="secret_key"):
            vector.decrypt()

    def test_the_same_share_looks_different_every_time(self, keys):
        one, other = (keys.encrypt(np.arange(3), REQUEST, "a")["0"] for _ in range(2))
        assert one.tobytes() != other.tobytes()

    def test_the_guarantee_says_so(self, keys, tmp_path):
        result, _ = sealed_run(secret("diff2", honest=2, seed=None), tmp_path, keys)
        for part in (
            "at least 2 of the 3 sites",
            "no site gives the server the key",
            "The server sees ciphertexts",
            "Against the server and a site together",
            "epsilon 3.0556 instead",
        ):
            assert part in result.guarantee


class Changed(AddingServer):
    """A server that does something else than adding all answers."""

    def total(self, payload, sites, timeout):
        self.sums = [*getattr(self, "sums", []), super().total(payload, sites, timeout)]
        return self.change(read(self.sums[-1]), payload, sites)

    def again(self, message, arrays):
        return write(Message(message.kind, message.fields, arrays))


class Adds(Changed):
    def change(self, message, payload, sites):
        return self.again(message, added([message.arrays, SiteKeys.generate().encrypt(START.numpy() > 9, REQUEST, "")]))


class Doubles(Changed):
    def change(self, message, payload, sites):
        return self.again(message, added([message.arrays, message.arrays]))


class Damages(Changed):
    def change(self, message, payload, sites):
        data = message.arrays["0"].copy()
        data[len(data) // 2] ^= 1
        return self.again(message, {"0": data})


class Cuts(Changed):
    def change(self, message, payload, sites):
        return self.again(message, {"0": message.arrays["0"][:1000]})


class LeavesOut(Changed):
    def change(self, message, payload, sites):
        replies = self.broadcast(payload, sites, 5.0)
        return self.again(message, added([read(replies.answers[site]).arrays for site in sites[1:]]))


class Repeats(Changed):
    def change(self, message, payload, sites):
        return self.again(message, read(self.sums[0]).arrays) if len(self.sums) > 1 else self.sums[0]


class SendsNothing(Changed):
    def change(self, message, payload, sites):
        return self.again(message, {})


class SendsAnother(Changed):
    def change(self, message, payload, sites):
        return write(Message(message.kind, {**message.fields, "request": REQUEST}, message.arrays))


class TestAServerThatCheats:
    @pytest.mark.parametrize(
        ("server", "reason"),
        [
            (Adds, "it was changed"),
            (Doubles, "it was changed"),
            (Damages, "it was changed|not a ciphertext"),
            (Cuts, "not a ciphertext"),
            (LeavesOut, "a site was left out"),
            (Repeats, "it was changed"),
            (SendsNothing, "0 ciphertexts, expected 1"),
            (SendsAnother, "another question"),
        ],
    )
    def test_is_found_out(self, server, reason, keys, tmp_path):
        with pytest.raises(BadAnswer, match=reason):
            sealed_run(secret("diff2"), tmp_path, keys, server=server)

    def test_it_cannot_ask_itself(self, keys, tmp_path):
        """Not in the open, and not with a key of its own."""
        site = opened(tmp_path, SECRET, keys=keys)
        answer = read(site.answer(QUESTION))
        assert answer.kind == "refusal"
        assert "must be sealed" in answer.fields["reason"]
        sealed_question = SiteKeys.generate().seal(QUESTION)
        assert read(site.answer(sealed_question)).kind == "refusal"
        assert "other keys" in site.ledger.refusals[-1].reason

    def test_a_changed_question_is_refused(self, keys, tmp_path):
        site = opened(tmp_path, SECRET, keys=keys)
        box = read(keys.seal(QUESTION)).arrays["box"].copy()
        box[100] ^= 1
        assert read(site.answer(write(Message(sealed.SEALED, {}, {"box": box})))).kind == "refusal"


class TestASite:
    def test_the_same_question_has_the_same_noise(self, keys, tmp_path):
        inner = QUESTION
        found = []
        for site in (
            opened(tmp_path, SECRET, keys=keys),
            opened(tmp_path, SECRET, keys=keys),
        ):  # the second was restarted
            for _ in range(2):
                arrays = read(site.answer(keys.seal(inner))).arrays
                found.append(keys.decrypt(arrays, len(START), digest(inner), ["north"]))
        assert all(np.array_equal(steps, found[0]) for steps in found)
        assert len(answer_labels(site.ledger.path)) == 1

    def test_a_changed_one_is_refused_and_only_the_site_says_why(self, keys, tmp_path):
        site = opened(tmp_path, SECRET, keys=keys)
        assert read(site.answer(keys.seal(QUESTION))).kind == sealed.CIPHERTEXTS
        answer = read(site.answer(keys.seal(write(request(gradient(START + 1), Z).message()))))
        assert answer.kind == "refusal"
        assert "answered already" not in answer.fields["reason"]
        assert "answered already" in site.ledger.refusals[-1].reason

    def test_nothing_is_sealed_where_that_was_not_agreed(self, keys, tmp_path):
        site = opened(tmp_path, own_noise("diff2"), keys=keys)
        assert read(site.answer(keys.seal(QUESTION))).kind == "refusal"
        assert "must not be sealed" in site.ledger.refusals[-1].reason

    def test_its_policy_may_demand_it(self, keys, tmp_path):
        policy = replace(ANYTHING, require_secure_aggregation=True)
        with pytest.raises(SiteRefused, match="requires secure_aggregation"):
            federated_run(own_noise("diff2"), tmp_path / "open", make_sites(tmp_path / "a", policy))
        sealed_run(secret("diff2"), tmp_path, keys, make_sites(tmp_path / "b", policy, keys))

    def test_a_model_that_is_none_is_refused(self, keys, tmp_path):
        site = opened(tmp_path, SECRET, keys=keys)
        for params in (np.array([np.nan]), np.zeros((2, 2))):
            payload = keys.seal(write(Message(sealed.MODEL, {"run": RUN}, {"params": params})))
            assert read(site.answer(payload)).kind == "refusal"
        payload = keys.seal(write(Message(sealed.MODEL, {"run": "f" * 32}, {"params": np.zeros(2)})))
        assert read(site.answer(payload)).kind == "refusal"


class TestACoordinatorThatCheats:
    def test_it_gets_no_sum_of_fewer_sites(self, keys, tmp_path):
        """With the key it could read the answer of one site, which has the noise of one site; the server does not let
        it, for each site says for which sum it has answered."""
        sites = {name: opened(tmp_path, SECRET, index=i, keys=keys) for i, name in enumerate(NAMES)}
        adder = AddingServer(Recorder(sites))
        payload = keys.seal(QUESTION)
        for fewer in (NAMES[:1], NAMES[:2], NAMES[1:]):
            with pytest.raises(BadAnswer, match="less noise"):
                adder.total(payload, fewer, 5.0)
        assert read(adder.total(payload, NAMES, 5.0)).kind == sealed.TOTAL


class TestKeys:
    def test_a_file(self, keys, tmp_path):
        path = tmp_path / "sites.keys"
        keys.save(path)
        assert path.stat().st_mode & 0o777 == 0o600
        again = SiteKeys.load(path)
        assert again.fingerprint == keys.fingerprint
        steps = np.array([5, -7])
        arrays = added([keys.encrypt(steps, REQUEST, "a"), again.encrypt(steps, REQUEST, "b")])
        assert again.decrypt(arrays, 2, REQUEST, ["a", "b"]).tolist() == [10, -14]
        with pytest.raises(InvalidArgument, match="never overwritten"):
            keys.save(path)

    def test_a_damaged_file(self, keys, tmp_path):
        path = tmp_path / "sites.keys"
        keys.save(path)
        data = path.read_bytes()
        for wrong in (b"", data[:100], write(Message("other", {}, {})), b"x" * 1000):
            path.write_bytes(wrong)
            with pytest.raises(InvalidArgument, match=r"sites\.keys is not a key file"):
                SiteKeys.load(path)
        with pytest.raises(InvalidArgument, match="no keys at"):
            SiteKeys.load(tmp_path / "nowhere")

    def test_named_in_a_site_file(self, keys, tmp_path):
        write_sites(tmp_path)
        keys.save(tmp_path / "north" / "sites.keys")
        path = tmp_path / "north" / "site.toml"
        path.write_text(path.read_text() + '[site]\nkeys = "sites.keys"\n')
        assert site_from_file("north", read_site_file(path)).keys.fingerprint == keys.fingerprint

    def test_other_keys_at_one_site(self, keys, others, tmp_path):
        sites = make_sites(tmp_path / "sites", keys=keys)
        sites["south"].keys = others
        with pytest.raises(BadAnswer, match="'south' has other keys"):
            sealed_run(secret("diff2"), tmp_path, keys, sites)
        assert not (tmp_path / "coordinator" / "ledger.jsonl").exists()

    def test_a_sum_under_other_keys(self, keys, others):
        arrays = added([keys.encrypt(np.arange(3), REQUEST, "a")])
        with pytest.raises(BadAnswer, match="other keys"):
            others.decrypt(arrays, 3, REQUEST, ["a"])
        with pytest.raises(Refusal, match="other keys"):
            others.unseal(read(keys.seal(b"question")))

    def test_a_site_without_keys(self, keys, tmp_path):
        with pytest.raises(SiteRefused, match=r"site\.toml"):
            sealed_run(secret("diff2"), tmp_path, keys, make_sites(tmp_path / "sites"))

    def test_the_server_cannot_coordinate(self, tmp_path):
        with pytest.raises(InvalidArgument, match="coordinated by one of the sites"):
            federated_run(secret("diff2"), tmp_path)

    def test_too_many_sites(self):
        trust = Trust("sites", secure_aggregation="tenseal")
        assert trust.honest_of(64) == 64
        with pytest.raises(InvalidArgument, match="64 sites"):
            trust.honest_of(65)


def test_agreements_of_the_tests_differ_in_trust_alone():
    assert replace(secret("diff2"), trust=Trust()) == agreement_of("diff2")
