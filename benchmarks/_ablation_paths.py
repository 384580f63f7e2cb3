"""The special paths that ablation.py switches off: where each can act, and the places of its code."""

import contextlib
import math
from typing import NamedTuple

from _ablation_page import CONTROL, LU

__all__ = ["DOMINANT", "GAUSS", "PATHS", "Path"]

GAUSS, DOMINANT = "gauss", "gauss_dominant"

LU_PY, CUDA_LU = "tcsolve/_lu/elimination.py", "tcsolve/_backends/cuda/lu"
LU_OPS, CUDA_OPS = f"{CUDA_LU}/ops.py:DeviceLU", "tcsolve/_backends/cuda/ops.py:CupyOps"
HOST, WGMMA = "tcsolve/_backends/cpu", "tcsolve/_backends/cuda/gemm/wgmma.py"
LADDER, LOOP = "tcsolve/_solve/ladder/ladder.py", "tcsolve/_refine/loop.py"
FACTORS, RUNTIME = "tcsolve/_lu/factors.py", "tcsolve/_backends/cuda/runtime"
SQUARES = (
    *(f"{WGMMA}:{name}" for name in ("Bound", "Right")),
    f"{CUDA_LU}/triangle_inverse.py:upper_inverse",
    f"{LU_OPS}.square",
    *(f"{CUDA_LU}/ops.py:{name}" for name in ("_bound", "_upper")),
    "tcsolve/_contract/lu.py:Square",
    *(f"{CUDA_LU}/rules.py:{name}" for name in ("SQUARE_BLOCKS", "has_squares")),
    *(f"{CUDA_LU}/rules.py:DeviceRules.{name}" for name in ("is_square", "_has_squares")),
    *(f"{LU_PY}:{name}" for name in ("_Panel.complete", "_Step.complete")),
    f"{HOST}/lu.py:HostLU.square",
)
AHEAD = (
    *(f"{CUDA_LU}/first_steps.py:{name}" for name in ("ahead", "_correct")),
    f"{LU_OPS}.ahead",
    f"{CUDA_OPS}.ahead_rows",
    "tcsolve/_contract/schedule.py:goes_ahead",
    *(f"{LADDER}:Ladder.{name}" for name in ("ahead", "_steps_ahead")),
    f"{LOOP}:_replay",
    *(f"{FACTORS}:{name}.ahead" for name in ("BlockedFactors", "NativeFactors")),
)


class Path(NamedTuple):
    """A special path: its name in `tcsolve._paths.OFF`, and the places of the code that goes with it.

    It acts on matrices of `families` with least <= n <= most, on the LU alone too if `lu`.
    """

    name: str
    code: tuple = ()
    lu: bool = False
    families: tuple = (GAUSS, DOMINANT)
    least: float = 0
    most: float = math.inf

    def acts(self, what, family, n):
        """Tell whether switching the path off can change a measurement."""
        return self.least <= n <= self.most and family in self.families and (self.lu or what != LU)

    def off(self):
        """Return a context in which the path is switched off."""
        from tcsolve._paths import switched_off

        return contextlib.nullcontext() if self.name == CONTROL else switched_off(self.name)


PATHS = (
    Path(CONTROL, lu=True),
    Path(
        "dominant_strips",
        (
            "kernels/lu/dominant_strip.cuh",
            "kernels/lu/panel.cu:factor_without_search",
            *(
                f"kernels/lu/exchange_{kind}.cuh:{name}"
                for kind in ("cluster", "grid")
                for name in ("share_sum", "sum_of_blocks")
            ),
        ),
        lu=True,
    ),
    Path("square_panels", SQUARES, lu=True, families=(DOMINANT,), least=4097),
    Path(
        "look_ahead",
        (
            f"{CUDA_LU}/look_ahead.py:SPARED",
            f"{CUDA_LU}/look_ahead.py:overlap",
            f"{CUDA_LU}/look_ahead.py:_reserved",
            f"{CUDA_LU}/sm_partition.py",
            "kernels/lu/wait_for_panel.cu",
        ),
        lu=True,
    ),
    Path(
        "gate",
        (
            "kernels/lu/wait_for_panel.cu",
            f"{CUDA_LU}/sm_partition.py:GATE_PATIENCE",
            f"{CUDA_LU}/sm_partition.py:Share.panel_follows",
            f"{CUDA_LU}/sm_partition.py:Share.await_panel",
        ),
        lu=True,
    ),
    Path(
        "wide_panels",
        (
            *SQUARES,
            f"{CUDA_LU}/triangle_inverse.py",
            f"{CUDA_LU}/unit_lower.py:invert",
            *(f"{WGMMA}:{name}" for name in ("Lower", "_Triangle", "_pieces")),
            f"{CUDA_LU}/ops.py:_by_inverse",
            f"{CUDA_LU}/rules.py:DeviceRules.is_wide",
            *(f"{LU_PY}:_Panel.{name}" for name in ("substitute", "_round")),
            *(f"{LU_PY}:_Step.{name}" for name in ("substitute", "fill")),
        ),
        lu=True,
        least=4097,
    ),
    Path(
        "small_graphs",
        tuple(f"{RUNTIME}/{name}.py" for name in ("recorded_graphs", "recurring", "tape")),
        lu=True,
        most=8192,
    ),
    Path("large_graphs", lu=True, least=8193),
    Path(
        "early_start",
        (
            f"{CUDA_OPS}.early_rows",
            "tcsolve/_contract/schedule.py:goes_early",
            f"{RUNTIME}/recorded_graphs.py:remembers",
        ),
        most=4096,
    ),
    Path("steps_ahead", AHEAD, most=8192),
    Path(
        "condition_aside",
        (
            f"{RUNTIME}/concurrent.py:aside",
            *(f"{FACTORS}:{name}.aside" for name in ("BlockedFactors", "NativeFactors")),
            "tcsolve/_solve/ladder/condition.py:ConditionEstimate.begin",
            *(f"{LADDER}:Ladder.{name}" for name in ("begin_aside", "finish", "is_busy")),
            f"{RUNTIME}/tape.py:Tape.follow_aside",
            "tcsolve/_lu/norms.py:sweeps_at_once",
        ),
        families=(GAUSS,),
    ),
    Path(
        "single_survey",
        (
            f"{CUDA_OPS}._survey",
            *(f"kernels/solve/survey.cu:{name}" for name in ("tcs_survey", "sum_across", "fold")),
            "kernels/solve/survey.cu:store_pair",
        ),
    ),
    Path(
        "residual_kernel",
        (
            *AHEAD,
            *(
                f"{CUDA_LU}/first_steps.py:{name}"
                for name in ("residual", "has_rows", "_residual", "_residual_launch")
            ),
            "kernels/solve/residual.cu",
        ),
    ),
    Path(
        "triangular_kernels",
        (
            *AHEAD,
            f"{RUNTIME}/concurrent.py:aside",
            "tcsolve/_arithmetic/formats.py:inverses_serve",
            f"{CUDA_LU}/ops.py:_substitute_columns",
            f"{CUDA_LU}/substitution.py",
            "kernels/solve/triangular_solve.cu",
            "kernels/solve/invert_diagonal_blocks.cu",
        ),
        lu=True,
    ),
    Path(
        "exact_memory",
        (
            "tcsolve/_solve/choice/cost_model.py:bytes_needed",
            *(
                f"tcsolve/_solve/choice/cost_model.py:{name}"
                for name in ("REFINEMENT_VECTORS", "EMULATED_OPERANDS")
            ),
            f"{LADDER}:Ladder.note_bytes",
            "tcsolve/_solve/choice/memory.py:MemoryPlan.note",
            f"{LOOP}:_bytes_kept",
            "tcsolve/_refine/krylov.py:basis_bytes",
        ),
    ),
)
