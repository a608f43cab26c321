"""Files: what is written, at what size, and the same bytes twice."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from specfit.cli import main
from specfit.methods import EAGLE3, SPECFIT
from specfit.run_folder import save_run
from tests.toys import TOY_COST, toy_run
from tests.workbench.test_figures import RUNS, with_cost
from workbench import CyclePlayer, CycleView, export, export_all, figures
from workbench.schematic import schematic
from workbench.tables import run_tables


def numbers(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_a_chart_becomes_files_of_exact_size_with_its_numbers(tmp_path):
    chart = figures.stage_times(RUNS[:3])
    files = {path.suffix: path for path in export(chart, tmp_path / "fig")}
    again = {path.suffix: path for path in export(figures.stage_times(RUNS[:3]), tmp_path / "again")}
    assert all(path.read_bytes() == again[suffix].read_bytes() for suffix, path in files.items())
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
    once = export_all(runs, tmp_path / "one", formats=("svg",))
    twice = export_all(runs, tmp_path / "two", formats=("svg",))
    assert [path.name for path in once] == [path.name for path in twice]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(once, twice, strict=True))
    names = {path.name for path in once}
    assert {
        "throughput.svg",
        "figure_1_cycle.svg",
        "runs.tex",
        "table_5.tex",
        "union_by_size.csv",
        "README.md",
    } <= names


def test_what_cannot_be_drawn_is_named_and_keeps_nothing_from_being_written(tmp_path):
    written = export_all([toy_run(EAGLE3)], tmp_path, formats=("svg",))
    notes = (tmp_path / "README.md").read_text()
    assert "stage_times.svg" in {path.name for path in written}
    assert "Only one cache size" in notes
    export_all([toy_run(SPECFIT)], tmp_path / "bare", formats=("svg",))
    assert "not drawn: Table 5" in (tmp_path / "bare" / "README.md").read_text()


def test_several_workloads_and_runs_get_names_of_their_own(tmp_path):
    runs = [with_cost(toy_run(SPECFIT)), with_cost(toy_run(SPECFIT), workload="*other*")]
    runs.append(with_cost(toy_run(SPECFIT), workload="*other*", routes={"source": "atlas", "accuracy": 0.6}))
    names = [path.name for path in export_all(runs, tmp_path, formats=("svg",))]
    assert len(names) == len(set(names))
    told = (tmp_path / "README.md").read_text().splitlines()
    titles = {line.partition(":")[0] for line in told if line.startswith("- Table 5")}
    assert len(titles) == 3 and any("60% right routes" in title for title in titles)
    assert all("*" not in line.replace(r"\*", "") for line in told)
    with pytest.raises(ValueError, match="written as pdf, svg, png; got 'gif'"):
        export_all(runs, tmp_path, formats=("gif",))


def test_the_papers_figures_and_tables_have_its_names_and_numbers(tmp_path, capsys):
    def run_of(method, workload, **settings):
        link = {"kind": "emulated", "expert_ms": 0.01}
        return with_cost(toy_run(method), workload=workload, target="toy", link=link, **settings)

    for workload in ("news", "problems"):
        for slots in (8, 4):
            for method in (EAGLE3, SPECFIT):
                run = run_of(method, workload, slots_per_layer=slots)
                save_run(tmp_path / "runs" / f"{workload}-{slots}-{method.name}", run)
    assert main(["figures", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--formats", "svg"]) == 0
    printed = capsys.readouterr().out.split()
    stems = {path.stem for path in map(Path, printed)}
    assert {
        "figure_1_cycle",
        "figure_2_throughput",
        "figure_3_throughput",
        "figure_4a_throughput_by_slots_news",
        "figure_4a_throughput_by_slots_problems",
        "figure_4b_time_and_copies_news",
        "equation_8_decomposition_news",
        "table_2",
        "table_3",
        "table_5_problems_4_slots",
    } <= stems
    told = (tmp_path / "out" / "README.md").read_text()
    for words in ("Figure 1. One decoding cycle", "Figure 2. Decode throughput, news", "Table 3. Methods on problems"):
        assert words in told
    rows = numbers(tmp_path / "out" / "figure_2_throughput.csv")
    assert {"source": "paper, Figure 2", "cache": "with cache", "decode_tps": "8.27"}.items() <= rows[-1].items()
    rows = numbers(tmp_path / "out" / "figure_4b_time_and_copies_news.csv")
    assert [row["cycle_ms"] for row in rows if (row["slots"], row["method"]) == ("12", "specfit")] == ["317.5"]
    assert "paper, Table 2" in (tmp_path / "out" / "table_2.md").read_text()
    assert "paper" not in (tmp_path / "out" / "figure_4b_time_and_copies_problems.csv").read_text()


def test_a_schematic_draws_from_any_cycle(tmp_path):
    for cycle in (RUNS[0].requests[0].cycles[0], RUNS[2].requests[0].cycles[4]):
        made = schematic(replace(cycle), tokens=RUNS[0].tokens)
        assert {path.suffix for path in export(made, tmp_path / "cycle")} == {".pdf", ".svg", ".png", ".csv"}
        assert repr(made).startswith("Schematic(")
