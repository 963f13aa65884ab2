"""What all compiled code depends on besides its program: versions, the C++ compiler, the machine."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import shutil
from pathlib import Path

import torch

from gtrace.core.backends.interpreter.matmul import libraries
from gtrace.core.base.errors import UnableError
from gtrace.core.base.mechanisms import switched_off
from gtrace.version import __version__

_PACKAGE = Path(__file__).resolve().parents[2]

_OBSERVERS = frozenset({"cli.py", "__main__.py", "hotpath.py", "commands", "observe", "__pycache__"})
"""Files that cannot change compiled code. All others count, so that a new module is never left out by mistake."""


_NOT_INSTRUCTIONS = frozenset(
    """acpi aperfmperf apic arat arch_capabilities arch_perfmon art bts cat_l2 cat_l3 cdp_l2 cdp_l3 constant_tsc cpb
    cpuid cpuid_fault cqm cqm_llc cqm_mbm_local cqm_mbm_total cqm_occup_llc dca ds_cpl dtes64 dtherm dts epb ept ept_ad
    est extapic extd_apicid flexpriority flush_l1d hfi ht hw_pstate hwp hwp_act_window hwp_epp hwp_notify hwp_pkg_req
    hypervisor ibpb ibrs ibrs_enhanced ida intel_ppin intel_pt invpcid_single la57 mba mca mce md_clear mtrr
    nonstop_tsc nonstop_tsc_s3 npt nrip_save overflow_recov pbe pcid pdcm pdcm pebs perfctr_core perfctr_llc
    perfctr_nb pge pln pse pse36 pti pts rdt_a rep_good sev sev_es skinit smca sme smep smap smx spec_ctrl
    split_lock_detect ssbd stibp succor svm svm_lock tm tm2 topoext tpr_shadow tsc_adjust tsc_deadline_timer
    tsc_known_freq tsc_reliable umip vme vmmcall vmx vnmi vpid x2apic xtopology xtpr""".split()
)
"""Flags of Linux that tell of the system, a virtual machine or a mitigation. Any other flag counts as instructions."""


@functools.cache
def toolchain() -> dict[str, str]:
    """Return what all compiled code depends on besides its program, by name."""
    return {
        "gtrace": f"{__version__} {_source_digest()}",
        "torch": str(torch.__version__),
        "compiler": compiler(),
        "machine": f"{platform.system()} {platform.machine()}",
        "isa": instruction_set(),
        "products": libraries(),
        "off": switched_off(),
    }


def architecture(device: torch.device) -> str:
    """Return which machine code a device takes, such as "sm_90"; "none" for the CPU, whose `instruction_set` says."""
    return "sm_{}{}".format(*torch.cuda.get_device_capability(device)) if device.type == "cuda" else "none"


@functools.cache
def instruction_set() -> str:
    """Return torch's word for this processor, and the names of the instruction sets that `-march=native` may use.

    Processors of one word differ: code for one with AVX512-FP16 ends another one with SIGILL. The compiler asks the
    processor, which the system has asked already; starting the compiler would take each process longer.
    """
    word = torch.backends.cpu.get_cpu_capability()
    names = _processor_flags() - _NOT_INSTRUCTIONS
    return " ".join([word, *sorted(names)])


def missing_instructions(made: str, here: str) -> list[str]:
    """Return the instruction sets that one `instruction_set` names and another lacks, torch's words left out.

    >>> missing_instructions("AVX512 avx2 avx512f", "AVX2 avx2 sse2")
    ['avx512f']
    """
    words = ("DEFAULT", "AVX2", "AVX512", "NO")
    return [name for name in made.split() if name not in words and name not in here.split()]


def _processor_flags() -> set[str]:
    """Return the names of what a processor can do, by the system; without such a list, by its model and by torch."""
    # other systems have no such file
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip().lower() in ("flags", "features", "isa"):
                return set(value.split())
    model = f"{platform.system()} {platform.machine()} {platform.processor()}".replace(" ", "_")
    known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return {model, *(name for name, there in known.items() if there is True)}


def compiler_path() -> str | None:
    """Return the absolute path of the C++ compiler, which runs in another folder; None without one."""
    path = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("clang++")
    return None if path is None else os.path.abspath(path)


def require_compiler(device: torch.device) -> None:
    """Raise an UnableError if programs for a device cannot be compiled here. Triton says itself what it lacks."""
    if device.type != "cpu":
        return
    if not hasattr(os, "killpg"):
        raise UnableError("compilers run as process groups, and this system has none")
    if compiler_path() is None:
        named = os.environ.get("CXX") or "g++"
        raise UnableError(
            f"compiling needs a C++ compiler, and there is no {named}. Install g++, or set CXX to its path"
        )


def compiler() -> str:
    """Return the path of the C++ compiler with the size and date of the file; "none" without a compiler."""
    path = compiler_path()
    if path is None:
        return "none"
    real = os.path.realpath(path)
    status = os.stat(real)
    return f"{real} {status.st_size} {int(status.st_mtime)}"


def _source_digest() -> str:
    """Return a digest of the modules that decide what operations compile to: a changed gtrace compiles anew."""
    hashed = hashlib.sha256()  # processors have instructions for it
    for folder, inner, files in os.walk(_PACKAGE):
        inner[:] = sorted(set(inner) - _OBSERVERS)
        for name in sorted(set(files) - _OBSERVERS):
            if name.endswith((".py", ".h")):
                with open(os.path.join(folder, name), "rb", buffering=0) as file:
                    hashed.update(file.read())
    return hashed.hexdigest()[:12]
