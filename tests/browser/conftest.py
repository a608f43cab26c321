"""One JupyterLab and one Chromium for all browser tests; screenshots stay in $SPECFIT_SCREENSHOTS or a temp folder."""

import os
from pathlib import Path

import pytest

from tests.browser.lab import FLAGS, Lab, lab_server

CHROMIUM = os.environ.get("CHROMIUM") or "/usr/bin/chromium"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="session")
def shots(tmp_path_factory):
    kept = os.environ.get("SPECFIT_SCREENSHOTS")
    place = Path(kept) if kept else tmp_path_factory.mktemp("screenshots")
    place.mkdir(parents=True, exist_ok=True)
    return place


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"no Chromium at {CHROMIUM}; install Debian's, or set CHROMIUM")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def server(folder):
    with lab_server(folder) as address:
        yield address


@pytest.fixture
def lab(browser, server, folder, shots, request):
    """A page; after the test its screenshot is kept, and no console error or stray request may have happened."""
    page = Lab(browser, server, folder, height=getattr(request, "param", 1100))
    yield page
    page.page.screenshot(path=shots / f"{request.node.name}.png")
    page.page.close()
    assert not page.errors
    assert not page.strays
