"""Where networks, features and true categories come from."""
