"""The clients: certificates from one server or several.

From a call to the wire, top to bottom:

- `certification_client`: arguments, and the version of the model to use.
- `procedures`: the draws of each image, and the result of their votes.
- `fanout`: distribution of the draws over servers, and retries.
- `requests`: sending, waiting and cancellation.
- `rs_keras.serving.wire`: conversion between arrays and messages.

In addition, `discovery` finds the available version, `tasks` cuts draws into
requests, `answers` and `audit` check responses, and `fleet` holds the state
that all calls of a client share: servers, channels and their `load`.
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
    from rs_keras.serving.tls import ClientTLS as ClientTLS

__all__, __getattr__, __dir__ = attach(__name__)
