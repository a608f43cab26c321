"""Files: what is written, at what size, and the same bytes twice."""

from dataclasses import replace

import pytest
from PIL import Image

from specfit.methods import EAGLE3, SPECFIT
from tests.toys import TOY_COST, toy_run
from tests.workbench.test_figures import RUNS, with_cost
from workbench import CyclePlayer, CycleView, export, export_all, figures
from workbench.schematic import schematic
from workbench.tables import run_tables


def test_a_chart_becomes_files_of_exact_size_with_its_numbers(tmp_path):
    chart = figures.stage_times(RUNS[:3])
    files = {path.suffix: path for path in export(chart, tmp_path / "fig")}
    assert set(files) == {".pdf", ".svg", ".png", ".csv"}
    with Image.open(files[".png"]) as picture:
        assert picture.size == (round(chart.width_in * 300), round(chart.height_in * 300))
    pdf = files[".pdf"].read_bytes()
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf  # TrueType
    assert f"/MediaBox [ 0 0 {chart.width_in * 72:g}".encode() in pdf
    assert files[".csv"].read_text().startswith("run,draft_ms")


def test_an_ending_chooses_the_way_and_a_wrong_one_is_a_sentence(tmp_path):
    chart = figures.stage_times(RUNS[:3])
    assert [path.name for path in export(chart, tmp_path / "x.svg")] == ["x.svg", "x.csv"]
    (page, _) = export(chart, tmp_path / "x.html")
    assert "Plotly.newPlot" in page.read_text() and 'src="http' not in page.read_text()
    with pytest.raises(ValueError, match=r"can be written as \.pdf, \.svg"):
        export(chart, tmp_path / "x.docx")
    with pytest.raises(ValueError, match=r"not \.png"):
        export(run_tables(RUNS)[0], tmp_path / "x.png")
    with pytest.raises(ValueError, match="no figure, table or view"):
        export(5, tmp_path / "x")
    assert not list(tmp_path.glob(".*"))


def test_a_view_becomes_a_static_page(tmp_path):
    cycle = RUNS[2].requests[0].cycles[4]
    for shown in (CycleView(cycle, tokens={0: "<script>alert(1)</script>"}, cost=TOY_COST), CyclePlayer(RUNS[2])):
        svg, page = export(shown, tmp_path / type(shown).__name__)
        assert svg.suffix == ".svg" and "<svg xmlns" in page.read_text()
        assert "<script" not in page.read_text()


def test_everything_twice_is_the_same_bytes(tmp_path):
    runs = RUNS[:3]
    once = export_all(runs, tmp_path / "one")
    twice = export_all(runs, tmp_path / "two")
    assert [path.name for path in once] == [path.name for path in twice]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(once, twice, strict=True))
    names = {path.name for path in once}
    assert {"throughput.pdf", "cycle.pdf", "runs.tex", "table_5.tex", "union_by_size.csv", "README.md"} <= names


def test_what_cannot_be_drawn_is_named_and_keeps_nothing_from_being_written(tmp_path):
    written = export_all([toy_run(EAGLE3)], tmp_path)
    notes = (tmp_path / "README.md").read_text()
    assert "stage_times.pdf" in {path.name for path in written}
    assert "Only one cache size" in notes
    export_all([toy_run(SPECFIT)], tmp_path / "bare")
    assert "not drawn: Table 5" in (tmp_path / "bare" / "README.md").read_text()


def test_several_workloads_and_runs_get_names_of_their_own(tmp_path):
    runs = [with_cost(toy_run(SPECFIT)), with_cost(toy_run(SPECFIT), workload="other")]
    names = [path.name for path in export_all(runs, tmp_path)]
    assert len(names) == len(set(names))


def test_a_schematic_draws_from_any_cycle(tmp_path):
    for cycle in (RUNS[0].requests[0].cycles[0], RUNS[2].requests[0].cycles[4]):
        made = schematic(replace(cycle), tokens=RUNS[0].tokens)
        assert {path.suffix for path in export(made, tmp_path / "cycle")} == {".pdf", ".svg", ".png", ".csv"}
        assert repr(made).startswith("Schematic(")
