"""Networks, features and true categories from a path, a word, or a data folder."""
