"""TLS listeners, with a certificate authority of the test's own."""

from __future__ import annotations

import contextlib
import datetime as dt
import socket
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from config.errors import ConfigurationError
from config.listeners import TLSFiles
from config.server import tls_context
from tests.config.serving import GET, hello, served


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def files(authority, tmp_path):
    return write(authority.issue_cert("localhost"), tmp_path)


def write(certificate, folder, **more) -> TLSFiles:
    certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    (folder / "key.pem").chmod(0o600)
    return TLSFiles(certificate=str(folder / "cert.pem"), key=str(folder / "key.pem"), **more)


def trusting(authority) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def talk(world, context, data=GET, *, whole=False) -> bytes:
    listener = world.bound[0].listener
    plain = socket.create_connection((listener.host, listener.port), 5)
    with context.wrap_socket(plain, server_hostname="localhost") as secured:
        secured.sendall(data)
        got = b""
        while (whole or b"\r\n\r\n" not in got) and (chunk := secured.recv(1000)):
            got += chunk
        return got


def assert_turned_away(world, context) -> None:
    """In TLS 1.3 a client learns only at its first read that the server does not want it."""
    with contextlib.suppress(OSError):
        assert talk(world, context) == b""
    assert world.seen == []


def test_a_call_over_tls_is_answered_and_says_so(authority, files):
    with served(hello, "tls:127.0.0.1:0", tls=files) as world:
        assert b"200 OK" in talk(world, trusting(authority))
        assert (world.seen[-1]["scheme"], world.seen[-1]["tls_subject"]) == ("https", None)


def test_a_refusal_over_tls_arrives_and_the_connection_is_closed(authority, files):
    with served(hello, "tls:127.0.0.1:0", tls=files) as world:
        got = talk(world, trusting(authority), b"GET /a HTTP/1.1\r\nHost: evil.test\r\n\r\n", whole=True)
        assert b"host-not-allowed" in got


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tls_older_than_1_2_is_refused(authority, files):
    old = trusting(authority)
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with served(hello, "tls:127.0.0.1:0", tls=files) as world, pytest.raises(OSError):
        talk(world, old)


def test_with_a_client_ca_a_certificate_of_it_is_needed_and_its_subject_is_told(authority, tmp_path):
    clients = trustme.CA()
    clients.cert_pem.write_to_path(str(tmp_path / "clients.pem"))
    files = write(authority.issue_cert("localhost"), tmp_path, client_ca=str(tmp_path / "clients.pem"))
    with served(hello, "tls:127.0.0.1:0", tls=files) as world:
        assert_turned_away(world, trusting(authority))
        stranger = trusting(authority)
        trustme.CA().issue_cert("broker-1").configure_cert(stranger)
        assert_turned_away(world, stranger)
        known = trusting(authority)
        clients.issue_cert("broker-1", common_name="broker-1").configure_cert(known)
        assert b"200 OK" in talk(world, known)
        assert "commonName=broker-1" in world.seen[-1]["tls_subject"]
        assert len(world.seen) == 1


def test_a_server_certificate_does_not_pass_as_a_clients(authority, tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)

    def certificate(subject, issuer_name, issuer_key, public, *extensions):
        builder = x509.CertificateBuilder(
            subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]),
            issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer_name)]),
            public_key=public,
            serial_number=x509.random_serial_number(),
            not_valid_before=now - dt.timedelta(days=1),
            not_valid_after=now + dt.timedelta(days=1),
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=True)
        return builder.sign(issuer_key, hashes.SHA256())

    root = certificate("ca", "ca", key, key.public_key(), x509.BasicConstraints(ca=True, path_length=0))
    leaf_key = ec.generate_private_key(ec.SECP256R1())
    leaf = certificate(
        "broker-1", "ca", key, leaf_key.public_key(), x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    )
    pem = serialization.Encoding.PEM
    (tmp_path / "clients.pem").write_bytes(root.public_bytes(pem))
    (tmp_path / "leaf.pem").write_bytes(
        leaf_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + leaf.public_bytes(pem)
    )
    files = write(authority.issue_cert("localhost"), tmp_path, client_ca=str(tmp_path / "clients.pem"))
    context = trusting(authority)
    context.load_cert_chain(tmp_path / "leaf.pem")
    with served(hello, "tls:127.0.0.1:0", tls=files) as world:
        assert_turned_away(world, context)


def test_a_key_that_others_can_read_is_refused(files):
    Path(files.key).chmod(0o640)
    with pytest.raises(ConfigurationError, match="can be read by others"):
        tls_context(files)


def test_files_that_are_missing_or_do_not_fit_are_a_fault(authority, files, tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be used"):
        tls_context(TLSFiles(certificate=str(tmp_path / "none"), key=files.key))
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ConfigurationError, match="cannot be used"):
        tls_context(TLSFiles(certificate=files.certificate, key=write(authority.issue_cert("x"), other).key))


def test_a_key_that_is_encrypted_is_a_fault_and_asks_nobody(files, tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "locked.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"unknown"),
        )
    )
    (tmp_path / "locked.pem").chmod(0o600)
    with pytest.raises(ConfigurationError, match="cannot be used"):
        tls_context(TLSFiles(certificate=files.certificate, key=str(tmp_path / "locked.pem")))


def test_a_tls_listener_without_a_certificate_is_a_fault():
    with pytest.raises(ConfigurationError, match="needs a certificate"), served(hello, "tls:127.0.0.1:0"):
        raise AssertionError("it was ready")
