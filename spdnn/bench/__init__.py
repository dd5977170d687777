"""Measuring: other people's ways to run the same networks, to compare with."""
