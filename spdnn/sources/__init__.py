"""Where networks, features and true categories come from: a path, a word, or a data folder."""
