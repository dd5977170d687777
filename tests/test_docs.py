"""The programs in the documentation run."""

import re
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_the_digits_trained_pruned_and_run_are_as_documented() -> None:
    text = (DOCS / "any-network.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(programs) == 4
    names: dict[str, Any] = {}
    with threadpool_limits(1):  # matrices so small are slower on several threads
        for program in programs:
            exec(compile(program, "any-network.md", "exec"), names)
    assert names["accuracy"] > 0.9
    assert names["ensemble_accuracy"] > 0.9
