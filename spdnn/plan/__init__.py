"""Plans: everything that depends on the weights alone, made once, on the host."""
