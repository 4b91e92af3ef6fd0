"""Certification over gRPC: client, embedded server, deployment."""
