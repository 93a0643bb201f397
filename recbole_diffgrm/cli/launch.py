"""--nproc=N: the same command in N processes of this machine, as `torchrun --nproc_per_node=N` starts them."""

import logging
import os
import sys
import uuid
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def launch(num_processes: int, arguments: Sequence[str]) -> int:
    """The exit code. A process that fails has said why: what torchrun says in addition is a page long."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed"):  # each of them has a level of its own
            logging.getLogger(name).setLevel(logging.CRITICAL)
    # As torchrun does: the cores are for the processes.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_processes)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-u", "-m", "recbole_diffgrm", *arguments)
    except ChildFailedError as error:
        exit_code = error.get_first_failure()[1].exitcode
        return exit_code if exit_code > 0 else 128 - exit_code  # negative: of a signal
    except SignalException as stop:
        return 128 + stop.sigval
    return 0
