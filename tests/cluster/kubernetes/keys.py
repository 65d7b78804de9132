"""The cluster's own certificate authority and what it signs."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Long enough for a cluster that a developer keeps; such clusters are thrown away, so nothing is rotated.
_VALID = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Files with a certificate and its key, in PEM."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates and writes them into a directory.

    Args:
        directory: Where the files go; a later one on the same directory goes on with the same authority.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.pair = KeyPair(directory / "ca.crt", directory / "ca.key")
        if not self.pair.certificate.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            name = _name("forerun-test-cluster")
            builder = _builder(name, name, key).add_extension(x509.BasicConstraints(True, None), critical=True)
            _write(self.pair, builder.sign(key, hashes.SHA256()), key)
        loaded = serialization.load_pem_private_key(self.pair.key.read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        self._key = loaded
        self._certificate = x509.load_pem_x509_certificate(self.pair.certificate.read_bytes())

    def issue(
        self,
        file: str,
        common_name: str,
        *,
        group: str = "",
        names: tuple[str, ...] = (),
        addresses: tuple[str, ...] = (),
    ) -> KeyPair:
        """A certificate for a server, a client, or both; the same one when it was issued before.

        Args:
            file: What its files are called.
            common_name: The user's name for Kubernetes.
            group: The user's group for Kubernetes.
            names: DNS names that it serves.
            addresses: IP addresses that it serves.
        """
        pair = KeyPair(self._directory / f"{file}.crt", self._directory / f"{file}.key")
        if pair.certificate.exists():
            return pair
        key = ec.generate_private_key(ec.SECP256R1())
        served: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        served += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        builder = _builder(_name(common_name, group), self._certificate.subject, key).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        if served:
            builder = builder.add_extension(x509.SubjectAlternativeName(served), critical=False)
        _write(pair, builder.sign(self._key, hashes.SHA256()), key)
        return pair

    def signing_key(self, file: str) -> KeyPair:
        """A bare key pair, for tokens of service accounts; `certificate` holds the public key."""
        pair = KeyPair(self._directory / f"{file}.pub", self._directory / f"{file}.key")
        if not pair.certificate.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            _write_key(pair.key, key)
            pair.certificate.write_bytes(
                key.public_key().public_bytes(
                    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
                )
            )
        return pair


def _name(common_name: str, group: str = "") -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _VALID)
    )


def _write(pair: KeyPair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    _write_key(pair.key, key)
    pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
