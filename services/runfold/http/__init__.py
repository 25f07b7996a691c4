"""What all HTTP services share: problem documents, bodies, idempotency, health and metrics."""
