"""Plans of the CPU engine."""
