"""A real JupyterLab and a real Chromium, isolated from whoever runs the tests, driven by commands."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
REPOSITORY = Path(__file__).parents[2]
NO_NEWS = {"fetchNews": "false", "checkForUpdates": False}  # or a pop-up covers the page
READY = """() => {
  const panel = window.jupyterapp?.shell?.currentWidget, session = panel?.sessionContext;
  const kernel = session?.session?.kernel;
  return !!kernel && session.isReady && kernel.status === "idle" && kernel.connectionStatus === "connected";
}"""


@contextmanager
def lab_server(folder: Path) -> Iterator[str]:
    """JupyterLab on 127.0.0.1 with `folder` as its root; gives its address with the token."""
    home = folder / ".jupyter-isolated"
    names = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
    environment = {
        **os.environ,
        **{f"JUPYTER_{name}": str(home / name.lower()) for name in names},
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    news = home / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    news.parent.mkdir(parents=True)
    news.write_text(json.dumps(NO_NEWS))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(12)
    command = [
        *(sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", "--ip=127.0.0.1", f"--port={port}"),
        *("--LabApp.expose_app_in_browser=True", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}"),
    ]
    log = open(folder / ".lab.log", "wb")  # noqa: SIM115 - the server writes to it until the end
    server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{address}/api?token={token}", timeout=2)
                break
            except OSError:
                if server.poll() is not None:
                    raise RuntimeError((folder / ".lab.log").read_text()[-2000:]) from None
                time.sleep(0.5)
        yield f"{address}/lab/tree/{{path}}?reset&token={token}"
    finally:
        server.terminate()
        server.wait(20)
        log.close()


def notebook(*cells: str) -> str:
    """A notebook of code cells as JSON."""
    return json.dumps(
        {
            "cells": [
                {
                    "cell_type": "code",
                    "id": f"c{i}",
                    "source": cell,
                    "metadata": {},
                    "outputs": [],
                    "execution_count": None,
                }
                for i, cell in enumerate(cells)
            ],
            "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )


class Lab:
    """One page of a running lab; remembers console errors and requests that left this machine."""

    def __init__(self, browser: Any, address: str, folder: Path, *, width: int = 1500, height: int = 1100) -> None:
        self.address, self.folder = address, folder
        self.page = browser.new_page(viewport={"width": width, "height": height})
        self.errors: list[str] = []
        self.strays: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.set_default_timeout(90_000)  # a loaded machine is slow, not wrong
        self.page.on("request", self._request)

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:")):
            self.strays.append(request.url)

    def open(self, name: str, *cells: str) -> Lab:
        """Write a notebook (unless `cells` is empty) and open it with a connected kernel."""
        if cells:
            (self.folder / name).write_text(notebook(*cells))
        self.page.goto(self.address.format(path=name))
        self.page.wait_for_function(READY, timeout=180_000)
        self.page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
        return self

    def run_all(self) -> Lab:
        self.page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
        return self

    def command(self, name: str, **arguments: Any) -> None:
        self.page.evaluate("([name, args]) => window.jupyterapp.commands.execute(name, args)", [name, arguments])

    def theme(self, name: str) -> None:
        """Light or Dark."""
        self.command("apputils:change-theme", theme=f"JupyterLab {name}")
        light = "true" if name == "Light" else "false"
        self.page.wait_for_function(f"() => document.body.dataset.jpThemeLight === '{light}'")
        self.page.wait_for_timeout(500)

    def value(self, expression: str) -> Any:
        """Evaluate Python in the notebook's kernel; its repr."""
        return self.page.evaluate(
            """async (code) => {
              const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
              const future = kernel.requestExecute({code: "", user_expressions: {v: code}, silent: true});
              const reply = await future.done;
              const found = reply.content.user_expressions.v;
              return found.status === "ok" ? found.data["text/plain"] : `${found.ename}: ${found.evalue}`;
            }""",
            expression,
        )


def contrast(one: str, other: str) -> float:
    """WCAG contrast of two CSS rgb() colours."""

    def lightness(colour: str) -> float:
        parts = [float(p) / 255 for p in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((lightness(one), lightness(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
