"""``gtrace run --workers N SCRIPT``: a script in several processes of this machine, started by torch's own launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from gtrace.commands.run import read


def launch(
    workers: int, script: str, args: Sequence[str], *, quiet: bool, jax: bool, restarts: int = 0,
    module: bool = False,
) -> int:  # fmt: skip
    """Run a script in `workers` processes; unless `quiet`, the first one prints the table at its end.

    The launcher is torchrun: it gives each process its rank, and ends all of them when one fails.

    Args:
        restarts: how often it then starts them again.
        module: `script` is the name of a module.

    Returns:
        The exit code: 2 if the script cannot be read, 0 if every process ended without an error, else another one.
    """
    if read("run", script, module) is None:
        return 2
    options = ["--standalone", f"--nproc-per-node={workers}", f"--max-restarts={restarts}", "--module", "--"]
    options += ["gtrace", "run"]
    # one thread each, unless the user says otherwise: the processes share the cores
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    if restarts:
        # the launcher's own store, which it would share with the processes, knows those of the first start only
        environment.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    command = [sys.executable, "-m", "torch.distributed.run", *options, *["--quiet"] * quiet, *["--jax"] * jax]
    command += [*["-m"] * module, script, *args]
    process = subprocess.Popen(command, env=environment)
    try:
        return process.wait()
    except KeyboardInterrupt:
        # the launcher got it too, and ends its processes
        return process.wait()
