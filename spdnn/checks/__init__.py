"""Checks of a result, by true categories or by the float64 reference."""
