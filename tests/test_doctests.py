"""The examples in docstrings say what happens."""

import doctest
import importlib
import pkgutil

import spdnn

MODULES = [
    "spdnn",
    *(
        info.name
        for info in pkgutil.walk_packages(spdnn.__path__, "spdnn.")
        if not info.name.endswith("__main__")
    ),
]


def test_examples_in_docstrings_are_true() -> None:
    n_examples = 0
    for name in MODULES:
        failures, tried = doctest.testmod(importlib.import_module(name))
        assert failures == 0, f"an example of {name} is not true"
        n_examples += tried
    assert n_examples > 0
