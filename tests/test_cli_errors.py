"""Errors name parameters of the library, and the command line names its options in their place."""

import ast
import re
from pathlib import Path

import pytest

import spdnn
from spdnn.cli.errors import OPTIONS, print_error, with_options
from spdnn.cli.main import main

PACKAGE = Path(spdnn.__file__).parent
LIBRARY = [
    path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] != "cli"
]


def texts(path: Path) -> list[str]:
    """The strings of a module that are no docstrings."""
    tree = ast.parse(path.read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]


def test_parameters_that_errors_name_have_options() -> None:
    named = {
        name for path in LIBRARY for text in texts(path) for name in re.findall(r"`(\w+)", text)
    }
    assert named == OPTIONS.keys()


def test_the_library_names_no_options() -> None:
    found = [
        (path.name, option)
        for path in LIBRARY
        for text in texts(path)
        for option in re.findall(r"--[a-z-]+", text)
        if option in OPTIONS.values()
    ]
    assert not found


@pytest.mark.parametrize("option", sorted(OPTIONS.values()))
def test_the_options_exist(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    helps = ""
    for command in ("run", "bench"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        helps += capsys.readouterr().out
    assert re.search(rf"{option}\b", helps)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("take fewer `features` or `threads`", "take fewer --features or --threads"),
        ('use `engine="cuda"`', "use --engine cuda"),
        ("there is no file `layers.txt`", "there is no file `layers.txt`"),
        ("`other` is kept, and ` layers`, too", "`other` is kept, and ` layers`, too"),
    ],
)
def test_options_are_named_in_place_of_parameters(text: str, printed: str) -> None:
    assert with_options(text) == printed


def test_an_error_is_one_line_with_options(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("out of memory: take fewer `layers`")
    assert capsys.readouterr().err == "spdnn: error: out of memory: take fewer --layers\n"


def test_the_command_line_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--neurons", "1024", "--layers", "1", "--engine", "scipy", "--device", "0"]
    assert main(arguments) == 2
    text = capsys.readouterr().err
    assert text == "spdnn: error: engine scipy has no devices to choose from: use --engine cuda\n"
