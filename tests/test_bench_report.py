"""Reports show only what is proved right, and keep published rates apart from measured ones."""

import os
import re
import shutil
import struct
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from spdnn.bench import plots, tables
from spdnn.bench.page import make_page
from spdnn.bench.plots import roof_point, scaling_groups
from spdnn.bench.published import published
from spdnn.bench.records import Record
from spdnn.bench.report import write_report
from spdnn.bench.tables import Table, all_tables, as_latex, as_markdown
from spdnn.cli.main import main
from spdnn.errors import DataError
from tests.makers import record_facts, write_record

RIVAL = {"engine": "mkl", "library": "MKL sparse x dense + pruning"}


def record(**given: Any) -> Record:
    facts = record_facts(**given)
    return Record(facts, Path(f"{given.get('truth', 'passed')}.json"))


def whole() -> list[Record]:
    """Records of two networks, two modes, one and two threads, and a rival."""
    return [
        record(layers=layers, mode=mode, threads=threads, times=(t * 0.9, t, t * 1.2))
        for layers in (120, 480)
        for mode, speed in (("edges", 1.0), ("merge", 10.0))
        for threads in (1, 2)
        for t in (layers / 60 / speed / threads,)
    ] + [
        record(**RIVAL, times=(20.0, 21.0, 22.0)),
        record(**RIVAL, layers=480, features=6000, times=(9.0,)),
    ]


def table(title: str, records: list[Record]) -> Table:
    return next(made for made in all_tables(records) if made.title == title)


def column(made: Table, heading: str) -> list[str]:
    number = [each.heading for each in made.columns].index(heading)
    return [row[number] for row in made.rows]


def test_the_table_has_network_edges_seconds_rate_and_speed_up() -> None:
    made = table("Measured here", whole())
    assert column(made, "network") == ["1024 x 120"] * 4 + ["1024 x 480"] * 4
    assert column(made, "edges")[0] == "3,932,160"
    assert column(made, "seconds")[:2] == ["2", "1"]
    assert column(made, "range [s]")[1] == "0.9 to 1.2"
    assert column(made, "TeraEdges/s")[1] == f"{3932160 * 60000 / 1e12:.4g}"
    # The rival ran with two threads, and for the deeper network on a tenth of the features.
    assert column(made, "x MKL")[:4] == ["-", "21.0", "-", "210.0"]
    assert column(made, "x MKL")[5] == f"{9.0 * 10 / 4:.1f} *"
    assert any("a share of the features" in note for note in made.notes)
    assert any("not what the hardware has multiplied" in note for note in made.notes)
    assert "joules" not in [each.heading for each in made.columns]
    assert any("could not be read" in note for note in made.notes)


def test_energy_is_told_where_it_was_read() -> None:
    facts = record_facts()
    facts["joules"] = {"package-0": 40.0, "package-1": 2.0}
    assert column(table("Measured here", [Record(facts, Path("r"))]), "joules") == ["42"]


def test_rivals_have_a_table_of_their_own_with_their_share() -> None:
    made = table("Other libraries, measured here", whole())
    assert column(made, "share") == ["all", "1 of 10"]
    assert column(made, "features") == ["60,000", "6,000"]


def test_a_rival_is_compared_on_the_same_inputs_only() -> None:
    other = record(**RIVAL)
    other.facts["data"]["inputs_sha256"] = "other"
    assert column(table("Measured here", [record(), other]), "x MKL") == ["-"]


def test_published_figures_stand_apart() -> None:
    made = table("Published elsewhere", whole())
    assert len(made.rows) == 20  # ten sources, two networks
    assert any("not measured here" in note for note in made.notes)
    for other in all_tables(whole()):
        if other.title != made.title:
            assert "HPEC" not in str(other.rows)


def test_every_published_figure_has_its_source_and_network() -> None:
    rows = published()
    assert len(rows) == 120
    assert {(row.neurons, row.layers) for row in rows} == {
        (neurons, layers) for neurons in (1024, 4096, 16384, 65536) for layers in (120, 480, 1920)
    }
    for row in rows:
        assert row.source
        assert row.note
        assert 0.01 < row.teraedges_per_second < 400
        assert 2019 <= row.year <= 2023


def test_markdown_has_the_same_cells_in_every_row() -> None:
    text = as_markdown(all_tables(whole()), "Heading")
    made = table("Measured here", whole())
    lines = text.split("## Measured here\n\n")[1].split("\n\n")[0].splitlines()
    assert len(lines) == 2 + len(made.rows)
    assert len({len(line) for line in lines}) == 1
    assert {line.count("|") for line in lines} == {len(made.columns) + 1}
    assert set(lines[1]) <= set("| -:")


def test_latex_escapes_and_has_a_cell_a_column() -> None:
    text = as_latex(all_tables(whole()), "Heading")
    for body in re.findall(r"\\begin{tabular}{(\w+)}(.*?)\\end{tabular}", text, re.DOTALL):
        rows = [line for line in body[1].splitlines() if "\\\\" in line]
        assert rows
        assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {len(body[0])}
    assert "1024 $\\times$ 120" in text
    assert text.count("{") == text.count("}")
    assert tables.latex("50 % of A&B_c") == r"50 \% of A\&B\_c"


def test_plots_are_made_of_what_there_is() -> None:
    assert [plot.name for plot in plots.all_plots([record(**RIVAL)])] == ["rates"]


def test_plots_are_png_and_svg_and_the_same_every_time(page: Path) -> None:
    again = plots.all_plots(whole())
    assert [plot.name for plot in again] == ["rates", "layers", "scaling", "roofline"]
    for plot in again:
        assert plot.png == page.with_name(f"{plot.name}.png").read_bytes()
        assert plot.svg == page.with_name(f"{plot.name}.svg").read_bytes()
        assert plot.png.startswith(b"\x89PNG")
        width, height = struct.unpack(">II", plot.png[16:24])
        assert width > 1000
        assert height > 500
        assert ElementTree.fromstring(plot.svg).tag.endswith("svg")
        assert plot.title
        assert plot.caption


def test_a_plot_says_the_machine_and_the_commit_and_keeps_published_figures_apart() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    drawing = plots.draw_rates(pyplot, whole())
    here, elsewhere = drawing.figure.axes
    assert "elsewhere" in elsewhere.get_title(loc="left")
    assert all(line.get_markerfacecolor() != "none" for line in here.lines)
    assert {line.get_markerfacecolor() for line in elsewhere.lines} == {"none"}
    assert [line.get_label() for line in here.lines] == [
        "spdnn cpu, edges", "spdnn cpu, merge", "MKL sparse x dense + pruning *"
    ]  # fmt: skip
    looks = {(line.get_color(), line.get_marker()) for line in here.lines}
    assert len({colour for colour, _ in looks}) == len({marker for _, marker in looks}) == 3
    assert here.get_xscale() == elsewhere.get_xscale() == "log"
    assert here.get_xlabel() == "TeraEdges/s"
    pyplot.close(drawing.figure)
    assert plots.subtitle(whole()) == "a CPU, 2 processors · spdnn 0.1.0 (abc123)"


def test_scaling_groups_differ_in_processors_only() -> None:
    groups = dict(scaling_groups([*whole(), record(layers=1920)]))
    assert set(groups) == {
        f"1024 x {layers}, cpu, {mode}" for layers in (120, 480) for mode in ("edges", "merge")
    }
    assert [found.case.threads for found in groups["1024 x 120, cpu, edges"]] == [1, 2]


def test_the_roofline_counts_weights_once_and_activations_in_and_out() -> None:
    point = roof_point(record(times=(2.0,)))
    n_bytes = 8 * 3932160 + 4 * 1024 * (60000 + 2 * 50000 + 2 * 1812 + 1812)
    assert point.intensity == pytest.approx(32 * 1024 * 60000 / n_bytes)
    assert point.rate == 32 * 1024 * 60000 / 2.0


@pytest.mark.parametrize("truth", ["failed", "none"])
def test_what_is_not_proved_reaches_no_table_plot_or_page(
    truth: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("records").mkdir()
    write_record(Path("records/good.json"), record_facts())
    write_record(Path("records/bad.json"), record_facts(layers=480, truth=truth))
    assert main(["report", "records", "--out", "out"]) == (1 if truth == "failed" else 0)
    assert "left out: records/bad.json" in capsys.readouterr().out
    for path in Path("out").iterdir():
        assert b"1024 x 480" not in path.read_bytes()
        if path.suffix in (".md", ".html"):
            assert b"1024 x 120" in path.read_bytes()
    Path("records/good.json").unlink()
    assert main(["report", "records", "--out", "none"]) == 2
    assert not Path("none").exists()


def test_records_of_two_machines_are_not_mixed() -> None:
    other = record(layers=480)
    other.facts["provenance"]["cpu"]["model"] = "another CPU"
    with pytest.raises(DataError, match="two machines"):
        write_report([record(), other], Path("out"))
    assert not Path("out").exists()


def test_a_path_that_is_not_utf_8_is_written_as_its_codes() -> None:
    one = record()
    one.facts["data"]["weights"] = os.fsdecode(b"w-\xff")
    one.facts["provenance"]["command"] = os.fsdecode(b"spdnn run --weights w-\xff")
    write_report([one], Path("out"))
    for name in ("table.md", "table.tex", "report.html"):
        Path("out", name).read_text(encoding="utf-8")


def test_a_missing_library_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    write_record(Path("r.json"), record_facts())
    assert main(["report", "r.json"]) == 2
    assert "matplotlib is needed for this: pip install 'spdnn[plot]'" in capsys.readouterr().err


class _Links(HTMLParser):
    """Everything that a browser would load or link to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe")
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(whole(), folder)
    return folder / "report.html"


def test_the_page_loads_nothing_else(page: Path) -> None:
    text = page.read_text()
    links = _Links()
    links.feed(text)
    assert len(links.found) > 10
    for link in links.found:
        assert link.startswith(("data:image/svg+xml;base64,", "#"))
    assert "url(" not in text
    assert "@import" not in text


def test_the_page_escapes_what_records_say() -> None:
    facts = record_facts()
    facts["provenance"]["command"] = "spdnn bench --data '<b>&'"
    page = make_page([Record(facts, Path("r"))], [], [], "A <heading>")
    assert "&lt;b&gt;&amp;" in page
    assert "A &lt;heading&gt;" in page


def test_a_browser_shows_the_page(page: Path) -> None:
    """Every plot is drawn, and nothing is wider than the page on a laptop."""
    browser = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None
    )
    if browser is None:
        pytest.skip("no Chromium to open the page with")
    script = (
        "<script>addEventListener('load', () => { document.title = JSON.stringify(["
        "[...document.images].filter(i => i.complete && i.naturalWidth > 300).length,"
        "document.scrollingElement.scrollWidth <= innerWidth]); })</script></body>"
    )
    probe = page.with_name("probe.html")
    probe.write_text(page.read_text().replace("</body>", script))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"]
    options += [f"--user-data-dir={Path('profile').resolve()}", "--dump-dom"]
    done = subprocess.run(
        [browser, *options, probe.resolve().as_uri()], capture_output=True, text=True, timeout=120
    )
    assert "<title>[4,true]</title>" in done.stdout
