"""Compile kernels in advance for `tcsolve warm`, and tell `tcsolve info` whether they compile."""

import re
from concurrent.futures import ThreadPoolExecutor

from tcsolve._backends import select
from tcsolve._backends.cuda.runtime import compiler, cubin_cache
from tcsolve._errors import DeviceError, InputError
from tcsolve._hardware import cores
from tcsolve.cli.messages import tell
from tcsolve.cli.progress_line import progress
from tcsolve.cli.rates import keep_rates
from tcsolve.kernels.registry import KERNELS

__all__ = ["outcomes", "parse_arch", "present_arch", "require_compiler", "warm"]

# Kernels with a variant for each size of matrices.  KERNELS lists only a few of these variants, so `warm`
# leaves out these kernels.
BY_SIZE = {"gemm_batched"}


def warm(archs, stream):
    """Compile the kernels for some architectures; return the exit code.

    Without architectures they are compiled for the GPU, and the rates of the machine are measured.
    """
    require_compiler()
    for arch in archs or [present_arch()]:
        names = [name for name in KERNELS if compiler.supported(name, arch) and name not in BY_SIZE]
        found = _compiled(arch, names)
        for outcome in found.values():
            for error in outcome:
                if isinstance(error, DeviceError):
                    raise error
        count = sum(map(len, found.values()))
        kept = sum(
            compiler.is_cached(name, arch, macros) for name, macros in _variants(arch, names)
        )
        folder = cubin_cache.folder()
        if kept < count:
            raise DeviceError(
                f"{count} kernels compile for {arch}, but {folder} has {kept}: it cannot be written or is "
                "full; make room, or set TCSOLVE_CACHE_DIR to another folder"
            )
        tell(f"{arch:8} {count} kernels in {folder}", stream)
    if not archs:
        keep_rates(stream)
    return 0


def parse_arch(text):
    """Return the architecture to compile for, as 'sm_90a' for 'sm_90' or '9.0'; or raise an InputError."""
    found = re.fullmatch(r"(?:sm_)?(\d{2,3})[af]?|(\d{1,2})\.(\d)", text.strip())
    if found is None:
        raise InputError(
            f"the architecture is {text!r}; a name such as sm_90, or a compute capability such as 9.0, "
            "is needed"
        )
    number = int(found[1] or found[2] + found[3])
    if number < (least := compiler.least_arch()):
        raise InputError(
            f"the architecture is {text!r}; the kernels need compute capability {least / 10} or later"
        )
    return compiler.arch_for(number)


def outcomes(arch):
    """Compile the kernels that `arch` supports; return {name: what happened} for all kernels."""
    texts = {}
    found = _compiled(arch, [name for name in KERNELS if compiler.supported(name, arch)])
    for name, spec in KERNELS.items():
        if name not in found:
            only = spec.min_arch if spec.min_arch == spec.max_arch else None
            least = f"{spec.min_arch / 10}" + (" exactly" if only else " or more")
            texts[name] = f"needs compute capability {least}, and this is {arch}"
            continue
        errors = [x for x in found[name] if isinstance(x, DeviceError)]
        texts[name] = f"{len(found[name])} variants compile for {arch}"
        if errors:
            texts[name] = "FAILS: " + " ".join(str(errors[0]).split())
    return texts


def _compiled(arch, names):
    """Compile all variants of these kernels side by side; return {name: [None or an error, ...]}."""

    def attempt(variant):
        try:
            compiler.compile_cubin(variant[0], arch, variant[1])
        except DeviceError as error:
            return error
        return None

    variants, found = _variants(arch, names), {name: [] for name in names}
    with (
        progress(f"compiling {len(variants)} kernels for {arch}"),
        ThreadPoolExecutor(cores()) as pool,
    ):
        for (name, _), outcome in zip(variants, pool.map(attempt, variants), strict=True):
            found[name].append(outcome)
    return found


def _variants(arch, names):
    """Return [(name, macros)] as `compile_cubin` takes them."""
    return [
        (name, tuple(sorted(v.items()))) for name in names for v in KERNELS[name].variants_for(arch)
    ]


def require_compiler():
    """Raise a DeviceError unless kernels can be compiled."""
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError) as error:
        raise DeviceError(
            f"CuPy with NVRTC is needed to compile kernels ({error}); pip install 'tcsolve[cuda13]' "
            "(or [cuda12])"
        ) from error


def present_arch():
    """Return the architecture of the GPU; raise an InputError if there is none."""
    if (reason := select.why_no_cuda()) is not None:
        raise InputError(
            f"no architecture is named, and {reason}; name those of the GPUs that will be used, as in "
            "tcsolve warm --arch sm_90"
        )
    return compiler.target_arch()
