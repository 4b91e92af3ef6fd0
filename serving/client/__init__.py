"""The clients: certificates from one server or several.

From a call to the wire, top to bottom:

- `certification_client`: arguments, and the version of the model to ask.
- `procedures`: which draws an image goes through, what its votes are worth.
- `fanout`: which server makes which draws, and what if it fails.
- `requests`: requests are sent, awaited, given up.
- `rs_keras.serving.wire`: arrays become messages, and messages arrays.

Beside them, `discovery` finds out what is served, `tasks` cuts draws into
requests, `answers` and `audit` check what comes back, and `fleet` keeps what
all calls of a client share: its servers, their channels and their speed.
"""

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
