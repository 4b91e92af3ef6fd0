"""What the commands that ask servers share: flags, and the client."""

import argparse
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from rs_keras.serving import CertificationClient


def add_arguments(parser: argparse.ArgumentParser) -> Any:
    """Adds the flags that say how servers are reached, in a group."""
    group = parser.add_argument_group("servers")
    group.add_argument(
        "--model-name",
        default="default",
        metavar="NAME",
        help="what the servers call the model (default: %(default)s)",
    )
    group.add_argument(
        "--model-version",
        type=int,
        metavar="N",
        help="of the model (default: the newest)",
    )
    group.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds that one request may take (default: %(default)s)",
    )
    group.add_argument(
        "--audit",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of the chunks that another server repeats, to find one "
        "that counts wrongly (default: %(default)s)",
    )
    group.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds to wait until the model is served (default: 0)",
    )
    group.add_argument(
        "--tls",
        action="store_true",
        help="connect with TLS; the flags below imply it",
    )
    group.add_argument(
        "--tls-ca",
        metavar="FILE",
        help="certificates to check servers against (PEM; default: the "
        "system's)",
    )
    group.add_argument(
        "--tls-cert", metavar="FILE", help="the client's certificate (PEM)"
    )
    group.add_argument(
        "--tls-key", metavar="FILE", help="its private key (PEM)"
    )
    group.add_argument(
        "--tls-server-name",
        metavar="NAME",
        help="the name in the servers' certificates, if not the address's",
    )
    return group


def client_of(args: argparse.Namespace, servers: str) -> "CertificationClient":
    """Connects to servers as the flags say."""
    from rs_keras.serving import CertificationClient
    from rs_keras.serving import ClientTLS

    files = (args.tls_ca, args.tls_cert, args.tls_key, args.tls_server_name)
    tls = ClientTLS(*files) if args.tls or any(files) else None
    client = CertificationClient(
        servers,
        args.model_name,
        version=args.model_version,
        timeout=args.timeout,
        tls=tls,
        audit=args.audit,
    )
    if args.wait:
        client.wait_ready(args.wait)
    return client
