"""The installation's own certificate authority, and what it signs. PEM in, PEM out; no files."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_AUTHORITY_DAYS: Final = 3650
_LEAF_DAYS: Final = 365
RENEW_DAYS: Final = 120
"""What is left of a certificate when it is made anew: a third, so that an upgrade now and then is enough."""
# Clocks of nodes differ a little.
_BEFORE: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes


def new_authority(now: datetime, common_name: str = "forerun-ca") -> Pair:
    """A new authority, valid for ten years."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name)
    builder = _builder(name, name, key.public_key(), now, _AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _pair(builder.sign(key, hashes.SHA256()), key)


class Purpose(Enum):
    """What a certificate proves."""

    SERVER = ExtendedKeyUsageOID.SERVER_AUTH
    CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH


def issue(
    authority: Pair,
    names: Sequence[str],
    now: datetime,
    *,
    purposes: Sequence[Purpose] = (Purpose.SERVER, Purpose.CLIENT),
    days: int = _LEAF_DAYS,
) -> Pair:
    """A certificate, usually for a server that is a client of others, too.

    Args:
        authority: Who signs.
        names: DNS names and IP addresses; the first is the certificate's own name.
        now: When it begins to be valid.
        purposes: What it proves.
        days: How long it is valid.

    Raises:
        ValueError: the authority is none.
    """
    signer = serialization.load_pem_private_key(authority.key, None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is not one of an elliptic curve")
    issuer = x509.load_pem_x509_certificate(authority.certificate).subject
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(_name(names[0]), issuer, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose.value for purpose in purposes]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
    )
    return _pair(builder.sign(signer, hashes.SHA256()), key)


def is_good(certificate: bytes, authority: bytes, names: Sequence[str], now: datetime) -> bool:
    """Whether a certificate need not be made anew: of this authority, for these names, and valid for long enough."""
    try:
        found = x509.load_pem_x509_certificate(certificate)
        found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
        served = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:  # whatever is wrong with it, it is made anew
        return False
    lasts = found.not_valid_after_utc - now > timedelta(days=RENEW_DAYS)
    return lasts and set(served) == {_general(name) for name in names}


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(common_name: str) -> x509.Name:
    # The field holds 64 characters; what counts are the alternative names.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    begin = now.astimezone(UTC) - _BEFORE
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
