"""How much memory an experiment's engines need, read from the checkpoint's headers; no weights are loaded."""

from __future__ import annotations

from math import prod

from specfit.experiments.file import Experiment
from specfit.experiments.plan import cache_name, caches

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def memory_needs(experiment: Experiment) -> list[str]:
    """A sentence for every cache: host memory for the experts, device memory for the slots and all that stays.

    Raises ValueError for a target that is not on this machine. Left out: KV caches, the drafter, and what the
    libraries take themselves (together some GB on a GPU).
    """
    from specfit import embedded
    from specfit.engine.checkpoint_files import open_checkpoint
    from specfit.engine.engine import expected_route_settings
    from specfit.engine.moe_shape import read_moe_shape

    place = embedded.target_folder() if experiment.target == "embedded" else experiment.target
    with open_checkpoint(place, local_files_only=True) as checkpoint:
        most = max(read_moe_shape(checkpoint.config).experts)
        sizes = {name: prod(entry.shape) for name, entry in checkpoint.tensors.items()}
    settings = expected_route_settings(experiment.target, device=experiment.device, dtype=experiment.dtype)
    each = BYTES[settings["dtype"]]
    experts = each * sum(size for name, size in sizes.items() if ".experts." in name)
    others = each * sum(sizes.values()) - experts
    return [
        f"{cache_name(slots, cleared=cleared)}: {_size(experts)} of experts in host memory, "
        f"{_size(others + experts * min(slots, most) / most)} on the device without KV cache and drafter"
        for slots, cleared in caches(experiment)
    ]


def _size(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
