"""Signing keys: made, read, published; PyJWT is the verifier that knows nothing of us."""

import base64
import hashlib
import hmac
import json

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from joserfc.jwk import ECKey, OKPKey

from config.secret import Secret
from minter import signing
from minter.signing import PRIVATE_MEMBERS, SigningError

ALGORITHMS = ("EdDSA", "ES256", "RS256", "HS256")
every = pytest.mark.parametrize("algorithm", ALGORITHMS)

#: Slow to make, and any one will do.
MADE = {algorithm: signing.generate(algorithm) for algorithm in ALGORITHMS}


def load(value, algorithm):
    return signing.load(value, algorithm, keyed_fingerprint="keyed")


def pem(key):
    return Secret(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
    )


@every
def test_an_independent_verifier_accepts_what_is_signed(algorithm):
    key = load(MADE[algorithm], algorithm)
    token = key.sign(b'{"aud":"https://api.example","exp":4102444800}').reveal()
    verifier = MADE["HS256"].reveal() if algorithm == "HS256" else jwt.PyJWK(dict(key.public_jwk)).key
    claims = jwt.decode(token, verifier, algorithms=[algorithm], audience="https://api.example")
    assert claims == {"aud": "https://api.example", "exp": 4102444800}
    assert jwt.get_unverified_header(token) == {"alg": algorithm, "typ": "at+jwt", "kid": key.kid}


@every
def test_what_is_published_holds_no_private_member(algorithm):
    key = load(MADE[algorithm], algorithm)
    if algorithm == "HS256":
        assert key.public_jwk is None
        return
    assert not PRIVATE_MEMBERS & key.public_jwk.keys()
    assert key.public_jwk["use"] == "sig"
    assert key.public_jwk["alg"] == algorithm
    assert json.dumps(dict(key.public_jwk))


@pytest.mark.parametrize(
    ("algorithm", "members"), [("EdDSA", "crv kty x"), ("ES256", "crv kty x y"), ("RS256", "e kty n")]
)
def test_the_kid_is_the_rfc_7638_thumbprint(algorithm, members):
    key = load(MADE[algorithm], algorithm)
    canonical = json.dumps({name: key.public_jwk[name] for name in members.split()}, separators=(",", ":"))
    expected = base64.urlsafe_b64encode(hashlib.sha256(canonical.encode()).digest()).rstrip(b"=").decode()
    assert key.kid == key.public_jwk["kid"] == expected


def test_the_thumbprint_of_rfc_8037_is_ours():
    """The one published vector for Ed25519 (RFC 8037, appendix A.3)."""
    jwk = {
        "kty": "OKP",
        "crv": "Ed25519",
        "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A",
        "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
    }
    assert load(Secret(json.dumps(jwk)), "EdDSA").kid == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


def test_the_fingerprint_is_the_sha_256_of_the_public_key():
    private = ed25519.Ed25519PrivateKey.generate()
    der = private.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert load(pem(private), "EdDSA").fingerprint == hashlib.sha256(der).hexdigest()


def test_the_name_of_a_shared_key_is_no_plain_digest_of_it():
    key = load(MADE["HS256"], "HS256")
    assert key.kid == key.fingerprint == "keyed"


def test_a_signature_of_es256_is_r_and_s_not_der():
    key = load(MADE["ES256"], "ES256")
    for _ in range(20):
        signature = key.sign(b"{}").reveal().split(".")[2]
        assert len(base64.urlsafe_b64decode(signature + "==")) == 64


@pytest.mark.parametrize("algorithm", ["EdDSA", "ES256"])
def test_a_jwk_is_read_as_well_as_pem(algorithm):
    made = {"EdDSA": OKPKey.generate_key("Ed25519"), "ES256": ECKey.generate_key("P-256")}[algorithm]
    key = load(Secret(json.dumps(made.as_dict(private=True))), algorithm)
    assert key.kid == made.thumbprint()


def test_a_jwk_of_another_program_lends_us_neither_its_name_nor_its_uses():
    made = OKPKey.generate_key("Ed25519")
    more = {"kid": "mine", "use": "enc", "key_ops": ["sign"], "x5t": "AAAA", "alg": "ES256"}
    key = load(Secret(json.dumps({**made.as_dict(private=True), **more})), "EdDSA")
    assert key.public_jwk.keys() == {"kty", "crv", "x", "kid", "use", "alg"}
    assert (key.kid, key.public_jwk["use"]) == (made.thumbprint(), "sig")


def encrypted():
    key = ed25519.Ed25519PrivateKey.generate()
    form = serialization.BestAvailableEncryption(b"password")
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, form).decode()


def public():
    key = ed25519.Ed25519PrivateKey.generate().public_key()
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


CANARY = "canary-of-signing"


@pytest.mark.parametrize(
    ("value", "algorithm"),
    [
        (CANARY, "EdDSA"),
        ("{" + CANARY, "EdDSA"),
        (f'{{"kty":"{CANARY}"}}', "EdDSA"),
        (f'{{"kty":"OKP","crv":"Ed25519","x":"{CANARY}"}}', "EdDSA"),
        ('{"kty":"OKP"}', "ES256"),
        (f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----", "RS256"),
        (encrypted(), "EdDSA"),
        (public(), "EdDSA"),
        (MADE["ES256"].reveal(), "EdDSA"),
        (MADE["EdDSA"].reveal(), "ES256"),
        (MADE["RS256"].reveal(), "ES256"),
        (pem(ec.generate_private_key(ec.SECP384R1())).reveal(), "ES256"),
        (pem(rsa.generate_private_key(65537, 1024)).reveal(), "RS256"),  # noqa: S505 - refused is what it is to be
        ("x" * 31, "HS256"),
        ('{"kty":"oct","k":"c2hvcnQ"}', "HS256"),
        (MADE["EdDSA"].reveal(), "HS256"),
        ("[" * 10_000, "EdDSA"),
        ("{" * 10_000, "EdDSA"),
    ],
)
def test_what_is_no_private_key_of_the_algorithm_is_refused_without_showing_it(value, algorithm):
    with pytest.raises(SigningError) as refused:
        load(Secret(value), algorithm)
    assert CANARY not in str(refused.value)
    assert refused.value.__cause__ is None
    assert value[:20] not in str(refused.value)


@every
def test_a_token_of_another_key_type_or_form_does_not_verify(algorithm):
    key = load(MADE[algorithm], algorithm)
    other = load(signing.generate("EdDSA"), "EdDSA")
    good = key.sign(b'{"exp":1}').reveal()
    head, body, signature = good.split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none","typ":"at+jwt"}').rstrip(b"=").decode()
    for token in (
        "",
        ".",
        "ä",
        good + "x",
        f"{head}.{body}.",
        f"{none}.{body}.",
        f"{head}.{base64.urlsafe_b64encode(b'{}').decode()}.{signature}",
        other.sign(b"{}").reveal(),
        key.sign(b"[]").reveal(),
    ):
        with pytest.raises(SigningError):
            key.verify(token)
    assert key.verify(good) == {"exp": 1}


def test_a_token_of_another_type_is_no_access_token():
    private = serialization.load_pem_private_key(MADE["EdDSA"].reveal().encode(), None)
    token = jwt.encode({"exp": 1}, private, algorithm="EdDSA", headers={"typ": "JWT"})
    with pytest.raises(SigningError, match="no access token"):
        load(MADE["EdDSA"], "EdDSA").verify(token)


def test_the_public_key_cannot_be_used_as_a_shared_secret():
    """The classic confusion: a verifier that takes the algorithm from the header checks HS256 with the public key."""
    key = load(MADE["RS256"], "RS256")
    numbers = jwt.PyJWK(dict(key.public_jwk)).key
    public_pem = numbers.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    header = {"alg": "HS256", "typ": "at+jwt", "kid": key.kid}
    signed = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, {}))
    mac = base64.urlsafe_b64encode(hmac.digest(public_pem, signed, "sha256")).rstrip(b"=")
    with pytest.raises(SigningError):
        key.verify(f"{signed.decode()}.{mac.decode()}")
    with pytest.raises(SigningError):
        load(Secret(public_pem.decode()), "HS256")


def test_a_private_key_that_names_the_public_half_of_another_is_refused():
    """Published, that half would let the other one's owner sign in our name."""
    ours, others = (OKPKey.generate_key("Ed25519", private=True).as_dict(private=True) for _ in range(2))
    with pytest.raises(SigningError):
        load(Secret(json.dumps({**ours, "x": others["x"]})), "EdDSA")
    assert load(Secret(json.dumps(ours)), "EdDSA").public_jwk["x"] == ours["x"]


@every
def test_no_text_form_of_a_key_shows_it(algorithm):
    key = load(MADE[algorithm], algorithm)
    shown = f"{key}{key!r}{key.__class__.__name__}"
    for line in MADE[algorithm].reveal().splitlines():
        assert line not in shown
