"""What a result is judged by: published categories, or the float64 reference."""
