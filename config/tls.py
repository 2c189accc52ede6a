"""Whom both programs trust when they call somebody over TLS: nothing of the environment has a say."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

import structlog

from config.errors import ConfigurationError, Fault

#: Where systems keep their certificate authorities, beside what OpenSSL was built with.
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
)

log = structlog.get_logger()


def client_context(ca_file: str = "") -> ssl.SSLContext:
    """Return the TLS settings of a client: 1.2 or newer, chain and name verified.

    Trust is ``ca_file``, else the system's authorities. Python's own default would take ``SSL_CERT_FILE`` and
    ``SSLKEYLOGFILE`` from the environment, and whoever can set those reads or fakes every call.
    Errors: ``ConfigurationError`` when ``ca_file`` cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.check_hostname = True
    if ca_file:
        try:
            context.load_verify_locations(cafile=ca_file)
        except (OSError, ssl.SSLError):
            raise ConfigurationError([Fault("ca_file", "cannot be read as certificates in PEM form")]) from None
        return context
    built_in = ssl.get_default_verify_paths()
    for bundle in (built_in.openssl_cafile, *_BUNDLES):
        if Path(bundle).is_file():
            context.load_verify_locations(cafile=bundle)
            return context
    if Path(built_in.openssl_capath).is_dir():
        context.load_verify_locations(capath=built_in.openssl_capath)
        return context
    # Without any, every https origin is refused; an operator who calls only loopback APIs needs none.
    log.warning("no-certificate-authorities", hint="install the system's, or set upstream.ca_file of the broker")
    return context
