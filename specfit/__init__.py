"""specfit: which draft tokens are worth verifying when a mixture-of-experts target keeps its experts in host memory.

Names that need torch (`load_engine` and its neighbours) and `theory`, which needs the solvers, are loaded when first
used: opening a run takes a fraction of a second.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specfit.calibrate import Calibration, calibrate
from specfit.cycle import Decoding
from specfit.methods import AR, EAGLE3, SPECFIT, Method
from specfit.objective import CostModel, CycleState, Selection, evaluate
from specfit.records import CycleRecord, RequestRecord, RunRecord
from specfit.routes import Routes, expert_union
from specfit.run_folder import load_run
from specfit.runs import RouteChoice, run_method
from specfit.select import select_exact
from specfit.tree import ROOT, DraftPool
from specfit.workloads import Workload, embedded_workload, spec_bench

if TYPE_CHECKING:
    from specfit import theory
    from specfit.engine.atlas import Atlas, record_atlas
    from specfit.engine.drafter import DraftConfig
    from specfit.engine.engine import Engine, load_engine
    from specfit.engine.link import CudaLink, EmulatedLink, InstantLink

_WITH_TORCH = {
    "Atlas": "atlas",
    "CudaLink": "link",
    "DraftConfig": "drafter",
    "EmulatedLink": "link",
    "Engine": "engine",
    "InstantLink": "link",
    "load_engine": "engine",
    "record_atlas": "atlas",
}

__all__ = [
    "AR",
    "EAGLE3",
    "ROOT",
    "SPECFIT",
    "Atlas",
    "Calibration",
    "CostModel",
    "CudaLink",
    "CycleRecord",
    "CycleState",
    "Decoding",
    "DraftConfig",
    "DraftPool",
    "EmulatedLink",
    "Engine",
    "InstantLink",
    "Method",
    "RequestRecord",
    "RouteChoice",
    "Routes",
    "RunRecord",
    "Selection",
    "Workload",
    "calibrate",
    "embedded_workload",
    "evaluate",
    "expert_union",
    "load_engine",
    "load_run",
    "record_atlas",
    "run_method",
    "select_exact",
    "spec_bench",
    "theory",
]


def __getattr__(name: str) -> Any:
    if name == "theory":
        return import_module("specfit.theory")
    if name in _WITH_TORCH:
        return getattr(import_module(f"specfit.engine.{_WITH_TORCH[name]}"), name)
    raise AttributeError(f"module 'specfit' has no attribute {name!r}")
