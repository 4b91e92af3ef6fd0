"""A certificate authority for tests."""

from datetime import UTC
from datetime import datetime
from datetime import timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates, as a company's own authority does."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self.issuer, self.key, True)
        self.path = folder / f"{name}.crt"
        self.path.write_bytes(self.pem(self.certificate))

    def issue(self, name, host="localhost", hours=1):
        """Returns a key and a certificate for `host`; expired if hours < 0."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        paths = [
            self.folder / f"{self.name}.{name}.{e}" for e in ("key", "crt")
        ]
        paths[0].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        paths[1].write_bytes(
            self.pem(self._sign(subject, key, False, host, hours))
        )
        return paths

    def pem(self, certificate):
        return certificate.public_bytes(serialization.Encoding.PEM)

    def _sign(self, subject, key, authority, host="localhost", hours=1):
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=2))
            .not_valid_after(now + timedelta(hours=hours))
            .add_extension(x509.BasicConstraints(authority, None), True)
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName(host)]), False
            )
            .sign(self.key, hashes.SHA256())
        )
