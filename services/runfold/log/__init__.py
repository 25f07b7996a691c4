"""The only package that uses Kafka. Base dependencies only, because agents import it too."""
