"""No widget outlives its test: one that is still open when the interpreter ends complains there, about nothing."""

import ipywidgets
import pytest


@pytest.fixture(autouse=True)
def _close_widgets():
    yield
    ipywidgets.Widget.close_all()
