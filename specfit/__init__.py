"""specfit: which draft tokens are worth verifying when a mixture-of-experts target keeps its experts in host memory.

Names that need torch (`load_engine` and its neighbours) and `theory`, which needs the solvers, are loaded when first
used: opening a run takes a fraction of a second.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specfit.ablations import ablations, compare
from specfit.bootstrap import paired_ratio, paired_speedup
from specfit.calibrate import Calibration, calibrate
from specfit.cycle import Decoding
from specfit.methods import AR, EAGLE3, SPECFIT, Method
from specfit.modelled import ModelledClock
from specfit.objective import CostModel, CycleState, Selection, evaluate
from specfit.recording import record_world
from specfit.records import CycleRecord, RequestRecord, RunRecord
from specfit.replay import replay
from specfit.routes import Routes, expert_union
from specfit.run_folder import load_run
from specfit.runs import RouteChoice, run_method
from specfit.sampling import Sampling
from specfit.select import select_exact
from specfit.tree import ROOT, DraftPool
from specfit.workloads import Workload, embedded_workload, spec_bench
from specfit.world import World, embedded_world

if TYPE_CHECKING:
    from specfit import theory
    from specfit.engine.atlas import Atlas, record_atlas
    from specfit.engine.drafter import DraftConfig
    from specfit.engine.drafter_config import Overrides
    from specfit.engine.engine import Engine, load_engine
    from specfit.engine.generate import Conversation
    from specfit.engine.link import CudaLink, EmulatedLink, InstantLink
    from specfit.engine.route_head import RouteHead
    from specfit.engine.route_sources import HeadRoutes, LastTokenRoutes, PriorRoutes, TargetRoutes

_WITH_TORCH = {
    "Atlas": "atlas",
    "Conversation": "generate",
    "CudaLink": "link",
    "DraftConfig": "drafter",
    "EmulatedLink": "link",
    "Engine": "engine",
    "HeadRoutes": "route_sources",
    "InstantLink": "link",
    "LastTokenRoutes": "route_sources",
    "Overrides": "drafter_config",
    "PriorRoutes": "route_sources",
    "RouteHead": "route_head",
    "TargetRoutes": "route_sources",
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
    "Conversation",
    "CostModel",
    "CudaLink",
    "CycleRecord",
    "CycleState",
    "Decoding",
    "DraftConfig",
    "DraftPool",
    "EmulatedLink",
    "Engine",
    "HeadRoutes",
    "InstantLink",
    "LastTokenRoutes",
    "Method",
    "ModelledClock",
    "Overrides",
    "PriorRoutes",
    "RequestRecord",
    "RouteChoice",
    "RouteHead",
    "Routes",
    "RunRecord",
    "Sampling",
    "Selection",
    "Workload",
    "TargetRoutes",
    "World",
    "ablations",
    "calibrate",
    "compare",
    "embedded_workload",
    "embedded_world",
    "evaluate",
    "expert_union",
    "load_engine",
    "load_run",
    "paired_ratio",
    "paired_speedup",
    "record_atlas",
    "record_world",
    "replay",
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
