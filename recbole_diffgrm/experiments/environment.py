"""What a result depends on besides its configuration: versions, commit, hardware."""

import os
import platform
import resource
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import torch

from recbole_diffgrm import processes

PACKAGES = ("recbole", "torch", "numpy", "pandas", "scipy")


def describe() -> dict:
    from recbole_diffgrm import __version__

    return {
        "recbole_diffgrm": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": processes.world(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def reset_peak_memory() -> None:
    """Start measuring anew: several runs may share a process. Linux only; elsewhere the peak is the process's."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_memory_mib() -> float:
    """Most memory held since `reset_peak_memory`: on the GPU if one is used, else resident memory."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 2**20
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**10
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 2**10)


def _commit() -> str | None:
    """Of this project's checkout, with `+changes` where the work tree differs; None in an installed wheel."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        git = ["git", "-C", str(root)]
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changes = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True).stdout.strip()
        return head + ("+changes" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Does the processor calculate in bfloat16 itself? True where it cannot be known."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return True
    flags = [line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))]  # x86, ARM
    return not flags or bool({"avx512_bf16", "amx_bf16", "bf16"} & set(flags[0]))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
