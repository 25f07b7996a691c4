"""Exports runs as traces over OTLP, by OpenTelemetry's conventions for generative AI."""
