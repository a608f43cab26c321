"""Jobs of an experiment on a Dask cluster (the extra `dask`): one GPU slot for each, by resource tag.

    dask scheduler                                                     # on one machine
    dask worker tcp://SCHEDULER:8786 --nthreads 1 --resources GPU=1    # on every machine, once for each GPU
    specfit experiment FILE --dask tcp://SCHEDULER:8786                # wherever the results shall lie

Workers need specfit and the checkpoints (under the same path, or by hub id); questions, atlases and coefficients are
sent to them, and their records come back. A worker that is lost loses its job to another one, which starts it anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from specfit.experiments.toml_values import ExperimentError

RESOURCE = "GPU"  # `dask worker --resources GPU=1`; a machine without one may offer it all the same
CONNECT_S = 20


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """An executor that gives every job one GPU slot of the cluster.

    Raises ExperimentError where distributed is not installed, no scheduler answers, or no worker has a slot to give.
    """
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise ExperimentError(
            f"--dask needs the dask extra ({error.name} is missing): pip install specfit-workbench[dask]"
        ) from error
    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:  # a time-out is an OSError
        why = " ".join(str(error).split())
        raise ExperimentError(
            f"no Dask scheduler answers at {address} ({why}); start one with `dask scheduler`"
        ) from None
    with client:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        offering = [worker for worker in workers if worker["resources"].get(RESOURCE, 0) >= 1]
        if not offering:
            raise ExperimentError(
                f"none of the {len(workers)} Dask workers at {address} offers a {RESOURCE} slot; start them with "
                f"`dask worker {address} --nthreads 1 --resources {RESOURCE}=1`"
            )
        with client.get_executor(resources={RESOURCE: 1}, pure=False) as executor:
            yield executor
