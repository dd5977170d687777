"""``python -m spdnn`` is the command ``spdnn``."""

from spdnn.cli.main import entry

if __name__ == "__main__":
    entry()
