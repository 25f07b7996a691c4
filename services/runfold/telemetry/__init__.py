"""What a process tells its operator: log lines, outages, spans."""
