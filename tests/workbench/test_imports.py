"""The workbench opens recorded runs without torch, and quickly."""

import subprocess
import sys
import time

from specfit.run_folder import save_run
from tests.toys import toy_run

CODE = """
import sys
import workbench
from workbench import CyclePlayer, figures, tables
player = CyclePlayer(sys.argv[1])
assert player.cycle is not None
player.view.nodes = ()
repr(figures.all_charts([sys.argv[1]])[0].plotly())
tables.run_tables([sys.argv[1]])
wrong = [name for name in sys.modules if name.startswith(("torch.", "transformers.", "specfit.engine"))]
assert not wrong, wrong
"""


def test_opening_a_run_imports_no_torch(tmp_path):
    save_run(tmp_path / "run", toy_run())
    done = subprocess.run([sys.executable, "-c", CODE, str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_importing_costs_little_more_than_ipywidgets():
    def seconds(code):
        best = 99.0
        for _ in range(3):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds("import workbench") < 6 * seconds("import ipywidgets")


def test_plotly_and_matplotlib_load_only_where_they_are_used():
    code = "import sys, workbench; print('plotly' in sys.modules, 'matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
