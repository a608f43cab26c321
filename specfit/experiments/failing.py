"""Why a job failed, in words, and which failures end the whole experiment."""

from __future__ import annotations

import errno
import traceback
from pathlib import Path

from specfit.experiments.toml_values import ExperimentError
from specfit.half_made import RecordingError
from specfit.record_lines import RunError
from specfit.safe_files import disk_problem

TAKES_NO_MORE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


def stop_for_the_disk(error: Exception) -> None:
    """The disk of this process ends the experiment with an ExperimentError: the next job would fail the same."""
    if isinstance(error, RunError | RecordingError) and isinstance(error.__cause__, OSError):
        raise ExperimentError(str(error)) from error
    if isinstance(error, OSError) and error.errno in TAKES_NO_MORE:
        then = "what is finished is kept; mend that and give the same command to go on"
        raise ExperimentError(f"{disk_problem(error)}; {then}") from error


def reason(error: BaseException) -> str:
    """Why a job failed, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
        return f"out of memory: {text}"
    if isinstance(error, ValueError | OSError):
        return text
    calls = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(calls[-1].filename).name}, line {calls[-1].lineno})" if calls else ""
    return f"{type(error).__name__}: {text}{place}"
