"""The clients: certificates from one server or several."""

from typing import TYPE_CHECKING

from rs_keras._lazy import attach

if TYPE_CHECKING:
    from rs_keras.serving.client.async_client import (
        AsyncCertificationClient as AsyncCertificationClient,
    )
    from rs_keras.serving.client.certification_client import (
        CertificationClient as CertificationClient,
    )
    from rs_keras.serving.client.channels import ClientTLS as ClientTLS

__all__, __getattr__, __dir__ = attach(__name__)
