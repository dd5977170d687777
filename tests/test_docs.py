"""The documentation: its programs run, its commands are accepted, its links lead somewhere."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from threadpoolctl import threadpool_limits

from spdnn.cli.main import make_parser

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "docs/decisions/*.md", "*/README.md")
    for path in ROOT.glob(pattern)
    if not path.relative_to(ROOT).parts[0].startswith(".")
)

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^()\s]+)\)")


def run_programs(page: str) -> dict[str, Any]:
    """Run the Python blocks of a page, one after the other; what they have defined."""
    programs = [text for word, text in FENCE.findall((ROOT / page).read_text()) if word == "python"]
    assert programs, f"{page} has no program"
    names: dict[str, Any] = {}
    with threadpool_limits(1):  # matrices so small are slower on several threads
        for number, program in enumerate(programs, start=1):
            exec(compile(program, f"{page}, program {number}", "exec"), names)
    return names


def test_the_readme_s_programs_run(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_programs("README.md")
    assert names["result"].categories.size == 398
    assert "LayerCount(live=" in capsys.readouterr().out
    assert names["scores"].shape == (100, 10)
    assert (names["scores"].argmax(axis=1) == names["classes"]).all()


def test_the_tutorial_s_programs_run(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_programs("docs/tutorial.md")
    assert names["passed"]
    assert names["accuracy"] > 0.9
    assert names["kept_edges"] < 0.5 * names["all_edges"]
    printed = capsys.readouterr().out.splitlines()
    text = (ROOT / "docs/tutorial.md").read_text()
    shown = re.findall(r"^ {4}((?:Network|Features)\(.*\))$", text, re.MULTILINE)
    assert len(shown) == 2
    assert set(shown) <= set(printed)


def test_the_digits_trained_pruned_and_run_are_as_documented() -> None:
    names = run_programs("docs/any-network.md")
    assert names["accuracy"] > 0.9
    assert names["ensemble_accuracy"] > 0.9


def test_no_other_page_has_programs_that_nobody_runs() -> None:
    with_programs = {page for page in PAGES if "```python" in (ROOT / page).read_text()}
    assert with_programs == {"README.md", "docs/tutorial.md", "docs/any-network.md"}


def commands_of(text: str) -> list[str]:
    """The `spdnn` commands in the indented blocks of a page, continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", text)
    found = re.findall(r"^ {4}(?:mpirun -n \d+ )?spdnn ([^\n#]*)", joined, re.MULTILINE)
    return [each.strip() for each in found]


@pytest.mark.parametrize("page", PAGES)
def test_commands_on_pages_are_accepted(page: str) -> None:
    parser = make_parser()
    for command in commands_of((ROOT / page).read_text()):
        if "..." not in command:
            parser.parse_args(shlex.split(command))  # SystemExit where an option is unknown


def anchor(heading: str) -> str:
    """What GitHub makes of a heading: lower case, hyphens for spaces, no punctuation."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def anchors_of(path: Path) -> set[str]:
    """The anchors of a page's headings."""
    text = FENCE.sub("", path.read_text())
    return {anchor(each) for each in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for link in LINK.findall(FENCE.sub("", path.read_text())):
        if link.startswith(("https://", "http://")):
            continue
        name, _, fragment = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{page}: {link}"
        assert not fragment or fragment in anchors_of(target), f"{page}: {link}"


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = (ROOT / "docs/index.md").read_text()
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```$", contents, re.MULTILINE | re.DOTALL)
    names = {line for tree in trees for line in tree.splitlines() if line and line[0] != ":"}
    listed = {(ROOT / "docs" / f"{name}.md").resolve() for name in names - {"api/index"}}
    assert {(ROOT / page).resolve() for page in PAGES} - {ROOT / "docs/index.md"} == listed


def source_text() -> str:
    """All source of the package, with the parts of texts joined that stand on several lines."""
    texts = (path.read_text() for path in sorted((ROOT / "spdnn").rglob("*.py")))
    return re.sub(r'"\n\s*(?:\+ )?f?"', "", "\n".join(texts))


def test_messages_on_the_page_of_troubles_are_the_program_s() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(messages) > 30
    source = source_text()
    for message in messages:
        fragments = [each for each in message.split("...") if re.search(r"\w{2}", each)]
        for fragment in fragments:
            assert fragment.strip(" ():;,") in source, f"no message of the program: {message}"


def test_the_citation_names_this_version() -> None:
    """Both name the same version, and the authors of the project."""
    citation = (ROOT / "CITATION.cff").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"\nversion: {project['version']}\n" in citation
    assert all(f"- name: {author['name']}\n" in citation for author in project["authors"])
