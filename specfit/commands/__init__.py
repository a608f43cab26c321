"""One module a command: `add(commands)` gives it its parser and options; `specfit.cli` runs what was chosen."""
