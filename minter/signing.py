"""Signing keys of our own: read, made, used and published. Primitives and JOSE are the libraries'.

One key, one algorithm (RFC 8725): the algorithm comes from the settings, never from a token's header. ``kid`` is the
RFC 7638 thumbprint, so that new material can never have an old name; for HS256, where that would be a plain digest
of the secret, it is the keyed fingerprint. The algorithm of Ed25519 is written ``EdDSA``, which every verifier knows,
not ``Ed25519`` (RFC 9864), which many do not yet.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from joserfc import jws
from joserfc.errors import JoseError, SecurityWarning, UnsupportedAlgorithmError
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from config.secret import Secret

Algorithm = Literal["EdDSA", "ES256", "RS256", "HS256"]
_Key = OKPKey | ECKey | RSAKey | OctKey

#: RFC 7518: an RSA key of 2048 bits or more, an HMAC key no shorter than the digest.
RSA_BITS: Final = 2048
NEW_RSA_BITS: Final = 3072
HMAC_BYTES: Final = 32
#: What a private key's members are called, in every key type; none of them is ever published.
PRIVATE_MEMBERS: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
TYPE: Final = "at+jwt"

_TYPES: Final[Mapping[Algorithm, type[_Key]]] = {"EdDSA": OKPKey, "ES256": ECKey, "RS256": RSAKey, "HS256": OctKey}
_CURVES: Final[Mapping[Algorithm, str]] = {"EdDSA": "Ed25519", "ES256": "P-256"}


class SigningError(Exception):
    """A text that is no signing key of the wanted algorithm, or a token that does not verify; never shows either."""


class _OneAlgorithm(JWSRegistry):
    """The library's registry for one algorithm. It is chosen on purpose, so there is nothing to warn of."""

    def get_alg(self, name: str) -> Any:
        if name not in (self.allowed or ()):
            raise UnsupportedAlgorithmError("another algorithm than the key's")
        return self.algorithms[name]


_REGISTRIES: Final = {algorithm: _OneAlgorithm(algorithms=[algorithm]) for algorithm in _TYPES}


@dataclass(frozen=True, slots=True, eq=False)
class SigningKey:
    """A private key, ready to sign. ``public_jwk`` is None for HS256, whose key is never published.

    ``fingerprint`` is the SHA-256 of the public key (SubjectPublicKeyInfo, DER) in hexadecimal.
    """

    algorithm: Algorithm
    kid: str
    public_jwk: Mapping[str, Any] | None
    fingerprint: str
    _key: _Key
    _header: Mapping[str, str]

    def sign(self, claims: bytes) -> Secret:
        """Return a signed access token (RFC 9068) over claims in JSON."""
        token = jws.serialize_compact(dict(self._header), claims, self._key, registry=_REGISTRIES[self.algorithm])
        return Secret(token)

    def sign_raw(self, data: bytes) -> bytes:
        """Return an Ed25519 signature over bytes, which say themselves what they are for: a prefix of their own.

        Errors: :class:`SigningError` for a key of another algorithm.
        """
        return self._ed25519().sign(data)

    def public_raw(self) -> bytes:
        """Return the Ed25519 public key, 32 bytes. Errors: :class:`SigningError` for a key of another algorithm."""
        return self._ed25519().public_key().public_bytes_raw()

    def _ed25519(self) -> Ed25519PrivateKey:
        private = getattr(self._key, "private_key", None)
        if not isinstance(private, Ed25519PrivateKey):
            raise SigningError("is no Ed25519 key")
        return private

    def verify(self, token: str) -> dict[str, Any]:
        """Return the claims of a token that this key signed; see :func:`verify`."""
        return _verify(token, self._key, self.algorithm)

    def __repr__(self) -> str:
        return f"SigningKey(algorithm={self.algorithm!r}, kid={self.kid!r})"


def load(value: Secret, algorithm: Algorithm, *, keyed_fingerprint: str) -> SigningKey:
    """Read a private key: PEM or JWK; for HS256 a JWK or the text itself, of 32 bytes or more.

    ``keyed_fingerprint`` names an HS256 key. The key has signed and verified once when this returns.
    Errors: :class:`SigningError`.
    """
    key = _import(value, algorithm)
    if isinstance(key, OctKey):
        kid = fingerprint = keyed_fingerprint
        public = None
    else:
        kid = key.thumbprint()
        fingerprint = hashlib.sha256(
            key.public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        ).hexdigest()
        members = {name: member for name, member in key.as_dict(private=False).items() if name in _PUBLIC}
        public = {**members, "kid": kid, "use": "sig", "alg": algorithm}
    signing_key = SigningKey(algorithm, kid, public, fingerprint, key, {"alg": algorithm, "typ": TYPE, "kid": kid})
    proof = signing_key.sign(b'{"proof":true}').reveal()
    try:
        # By the key that is published: a JWK may name the public half of another one.
        proved = signing_key.verify(proof) if public is None else verify(proof, public, algorithm)
    except SigningError:
        proved = {}
    if proved != {"proof": True}:
        raise SigningError("does not verify what it signs")
    return signing_key


def generate(algorithm: Algorithm) -> Secret:
    """Return a new private key: PEM (PKCS 8), for HS256 a text of 256 random bits."""
    if algorithm == "HS256":
        return Secret(secrets.token_urlsafe(HMAC_BYTES))
    if algorithm == "RS256":
        key: RSAKey | ECKey | OKPKey = RSAKey.generate_key(NEW_RSA_BITS)
    elif algorithm == "ES256":
        key = ECKey.generate_key("P-256")
    else:
        key = OKPKey.generate_key("Ed25519")
    return Secret(key.as_pem(private=True).decode())


def verify(token: str, jwk: Mapping[str, Any], algorithm: Algorithm) -> dict[str, Any]:
    """Return the claims of an access token that the key behind a public ``jwk`` signed. Judges no claim.

    Errors: :class:`SigningError`.
    """
    return _verify(token, _TYPES[algorithm].import_key(dict(jwk)), algorithm)


def algorithm(name: str) -> Algorithm:
    """Return an algorithm by its name. Errors: :class:`SigningError`."""
    for known in get_args(Algorithm):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise SigningError("the key's algorithm is unknown")


def kid_of(token: str) -> str | None:
    """Return the ``kid`` of a token's header, unverified: a name to look a key up by, nothing else."""
    try:
        kid = jws.extract_compact(token.encode("ascii")).headers().get("kid")
    except (JoseError, ValueError):
        return None
    return kid if isinstance(kid, str) else None


_PUBLIC: Final = frozenset({"kty", "crv", "x", "y", "n", "e"})


def _verify(token: str, key: _Key, algorithm: Algorithm) -> dict[str, Any]:
    try:
        found = jws.deserialize_compact(token.encode("ascii"), key, registry=_REGISTRIES[algorithm])
        claims = json.loads(found.payload)
    except (JoseError, ValueError, RecursionError):
        raise SigningError("the token does not verify") from None
    if found.headers().get("typ") != TYPE or not isinstance(claims, dict):
        raise SigningError("the token is no access token")
    return claims


def _import(value: Secret, algorithm: Algorithm) -> _Key:
    text = value.reveal()
    source: str | dict[str, Any] = text
    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            raise SigningError("is neither a JWK nor PEM") from None
        # The material alone: what another program named the key and used it for is not our affair.
        source = {name: member for name, member in document.items() if name in _PUBLIC | PRIVATE_MEMBERS}
    elif text.lstrip().startswith("-----BEGIN") is (algorithm == "HS256"):
        # The other way round as well: an asymmetric key is never a shared secret.
        raise SigningError("is not a shared secret" if algorithm == "HS256" else "is neither a JWK nor PEM")
    try:
        with warnings.catch_warnings():
            # Of keys that are too small; the check below refuses them.
            warnings.simplefilter("ignore", SecurityWarning)
            key: _Key = _TYPES[algorithm].import_key(source)
    except (JoseError, ValueError, TypeError, KeyError):
        # The library's text may quote what it was given.
        raise SigningError(f"is no private key for {algorithm}") from None
    _check(key, algorithm)
    return key


def _check(key: _Key, algorithm: Algorithm) -> None:
    if isinstance(key, OctKey):
        if len(key.raw_value) < HMAC_BYTES:
            raise SigningError(f"is shorter than {HMAC_BYTES} bytes")
        return
    if not key.is_private:
        raise SigningError("is a public key")
    if isinstance(key, RSAKey):
        if key.raw_value.key_size < RSA_BITS:
            raise SigningError(f"is an RSA key of less than {RSA_BITS} bits")
    elif key.curve_name != _CURVES[algorithm]:
        raise SigningError(f"is not on the curve {_CURVES[algorithm]}")
