"""The one place that speaks Kafka. Base dependencies only: agents import this too."""
