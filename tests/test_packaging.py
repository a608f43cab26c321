"""The project's shell holds together: pins, ranges, environment.yml, the wheel's contents, imports, messages."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# Modules that may load torch when imported; everything else in specfit and workbench must not.
TORCH_SIDE = ("specfit.engine", "specfit.embedded", "specfit.runs", "specfit.calibrate")


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


# -- versions


@pytest.mark.parametrize("text", [*PROJECT["dependencies"], *EXTRAS["workbench"], *EXTRAS["dask"], *EXTRAS["dev"]])
def test_every_dependency_is_pinned_within_its_range(text: str) -> None:
    wanted = Requirement(text)
    pinned = pins().get(canonicalize_name(wanted.name))
    assert pinned is not None, f"constraints.txt does not pin {wanted.name}"
    assert pinned in wanted.specifier


def test_pins_are_exact_sorted_and_public() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), "name==version, no local part such as +cpu"
    assert lines == sorted(lines, key=str.lower)
    assert len(pins()) == len(lines), "a name is pinned twice"


def test_environment_yml_agrees_with_pyproject() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, pip, pip_part = environment["dependencies"]
    assert Requirement(python).specifier == Requirement(f"python{PROJECT['requires-python']}").specifier
    assert pip == "pip"
    assert pip_part == {"pip": [f"-e .[{','.join(EXTRAS)}]"]}


def test_the_changelog_names_this_version() -> None:
    assert f"\n## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_licence_is_the_full_text() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert PROJECT["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


# -- what is imported is declared


def source_files(package: str) -> Iterator[Path]:
    yield from sorted((ROOT / package).rglob("*.py"))


def third_party_imports(package: str) -> dict[str, str]:
    """Map the distribution of each foreign top-level import to one file that has it."""
    distributions = packages_distributions()
    found = {}
    for path in source_files(package):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module or ""]
            else:
                continue
            for top in {module.split(".")[0] for module in modules}:
                if top not in sys.stdlib_module_names and top not in ("specfit", "workbench"):
                    found[canonicalize_name(distributions.get(top, [top])[0])] = str(path.relative_to(ROOT))
    return found


@pytest.mark.parametrize(("package", "extra"), [("specfit", EXTRAS["dask"]), ("workbench", EXTRAS["workbench"])])
def test_every_foreign_import_is_a_declared_dependency(package: str, extra: list[str]) -> None:
    declared = names(PROJECT["dependencies"]) | names(extra)
    # The kernel's own modules come with ipywidgets, whose widgets are made of them.
    declared |= {"ipython", "ipykernel", "traitlets", "comm"} if package == "workbench" else set()
    undeclared = {name: path for name, path in third_party_imports(package).items() if name not in declared}
    assert not undeclared


def test_recorded_runs_open_without_torch() -> None:
    """Import every module outside the engine in one fresh interpreter and look in sys.modules (style.md)."""
    modules = []
    for package in ("specfit", "workbench"):
        for path in source_files(package):
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if not module.startswith(TORCH_SIDE) and parts[-1] != "__main__":
                modules.append(module)
    code = (
        "import importlib, sys\n"
        f"for module in {modules}:\n"
        "    importlib.import_module(module)\n"
        "    loaded = {'torch', 'transformers'} & set(sys.modules)\n"
        "    assert not loaded, f'importing {module} loads {loaded}'\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


# -- what is shipped


def test_the_wheel_holds_both_packages_with_weights_and_javascript(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
    kept = {
        str(path.relative_to(ROOT))
        for package in ("specfit", "workbench")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix in {".py", ".js", ".css", ".json", ".safetensors", ".md"}
    }
    assert kept <= shipped
    assert not [name for name in shipped if name.startswith(("tests/", "notebooks/", "benchmarks/"))]
    assert Path(wheel).stat().st_size < 20e6, "the embedded pair is to stay under 15 MB"


def test_the_command_points_at_a_function() -> None:
    module, function = PROJECT["scripts"]["specfit"].split(":")
    tree = ast.parse((ROOT / Path(*module.split("."))).with_suffix(".py").read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


# -- make


@pytest.fixture
def bare_tree(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True)


def fake_python(folder: Path, body: str) -> str:
    path = folder / "fake-python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return f"PYTHON={path}"


@pytest.mark.parametrize("target", ["demo", "test", "lab"])
def test_make_asks_for_a_newer_python(bare_tree: Path, target: str) -> None:
    too_old = fake_python(bare_tree, 'case "$*" in *version_info*) exit 1;; -V) echo Python 3.9.2;; esac')
    result = make(bare_tree, target, too_old)
    assert result.returncode == 2
    assert "needs Python 3.11 or newer" in result.stderr
    assert "Python 3.9.2" in result.stderr


def test_make_says_what_to_install_for_venv(bare_tree: Path) -> None:
    no_venv = fake_python(bare_tree, 'case "$*" in *ensurepip*) exit 1;; esac')
    result = make(bare_tree, "demo", no_venv)
    assert result.returncode == 2
    assert "apt install python3-venv" in result.stderr
    assert not (bare_tree / ".venv").exists()


def test_make_says_when_there_is_no_python(bare_tree: Path) -> None:
    result = make(bare_tree, "demo", "PYTHON=no-such-python")
    assert result.returncode == 2
    assert "there is no 'no-such-python' here" in result.stderr


def test_make_reuses_a_venv_until_its_inputs_change_or_the_tree_moves(bare_tree: Path) -> None:
    venv = bare_tree / ".venv"
    venv.mkdir()
    (venv / ".made-for").write_text(f"{bare_tree.resolve()}\n")
    (venv / ".installed").touch()
    assert make(bare_tree, "-q", ".venv/.installed").returncode == 0

    newer = (venv / ".installed").stat().st_mtime + 10
    os.utime(bare_tree / "constraints.txt", (newer, newer))
    assert make(bare_tree, "-q", ".venv/.installed").returncode == 1

    os.utime(venv / ".installed", (newer + 10, newer + 10))
    assert make(bare_tree, "-q", ".venv/.installed").returncode == 0
    (venv / ".made-for").write_text("/another/folder\n")
    assert make(bare_tree, "-q", ".venv/.installed").returncode == 1


def test_the_ci_script_parses_and_is_executable() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
