"""The certificate of a bus's server, and who signs it: both made here, for a bus that nobody else knows of."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS, SERVER_DAYS = 3650, 825
EARLY_DAYS = 30  # before it ends a certificate counts as old
CLOCK_SKEW = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Signed:
    """PEM, both."""

    certificate: bytes
    key: bytes


def new_ca(now: datetime) -> Signed:
    """Signs for one bus alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Slackwater bus CA")
    builder = _builder(name, name, key.public_key(), now, CA_DAYS)
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    built = builder.add_extension(constraints, critical=True).add_extension(usage, critical=True)
    return _signed(built.add_extension(identifier, critical=False), key, key)


def new_server(ca: Signed, hosts: Sequence[str], now: datetime) -> Signed:
    """For a server that clients reach by any of these names and addresses."""
    signer = x509.load_pem_x509_certificate(ca.certificate)
    ca_key = serialization.load_pem_private_key(ca.key, None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name("Slackwater bus"), signer.subject, key.public_key(), now, SERVER_DAYS)
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])  # routes: both
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    built = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    for extension in (names, usage, authority):
        built = built.add_extension(extension, critical=False)
    return _signed(built, key, ca_key)


def is_good_for(certificate: bytes, hosts: Sequence[str], now: datetime) -> bool:
    """A server's, and not about to end."""
    found = x509.load_pem_x509_certificate(certificate)
    is_fresh = now + timedelta(days=EARLY_DAYS) < found.not_valid_after_utc
    return is_fresh and {_general_name(host) for host in hosts} <= set(_general_names(found))


def hosts_of(certificate: bytes) -> list[str]:
    """The names and addresses that a server's is good for."""
    return [str(name.value) for name in _general_names(x509.load_pem_x509_certificate(certificate))]


def is_fresh(certificate: bytes, now: datetime) -> bool:
    """One that signs, and outlives all that it signs now."""
    found = x509.load_pem_x509_certificate(certificate)
    return now + timedelta(days=SERVER_DAYS) < found.not_valid_after_utc


def utc_now() -> datetime:
    return datetime.now(UTC)


def _general_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - CLOCK_SKEW).not_valid_after(now + timedelta(days=days))


def _signed(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey
) -> Signed:
    certificate = builder.sign(by, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    encoding, how = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return Signed(certificate, key.private_bytes(encoding, how, serialization.NoEncryption()))
