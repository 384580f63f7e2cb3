"""Dense linear systems on tensor cores, with verified FP64 answers.

- ``solve`` replaces `scipy.linalg.solve`.  ``solve_ex`` also returns the status and the errors.
- ``factor`` keeps the factors for more right-hand sides.
- ``refine`` runs the refinement loop with any approximate inverse.
- ``gemm`` and ``gemm_batched`` multiply matrices, with a bound on the error.
- The module ``matrices`` makes and loads test problems.
"""

from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec

TYPE_CHECKING = False
if TYPE_CHECKING:  # static type checkers treat this name as True
    from tcsolve import matrices  # noqa: F401
    from tcsolve._public import *  # noqa: F403
del TYPE_CHECKING

if _find_spec("tcsolve.kernels") is None:
    raise ImportError(
        f"tcsolve: {__file__} belongs to sources that are not installed; start Python in another folder, "
        "or run `pip install -e .` in this one"
    )


def __getattr__(name):
    """Load a public name when it is first used, so that `python -m tcsolve` starts before NumPy loads."""
    if name == "matrices":
        return _import_module("tcsolve.matrices")
    # `from tcsolve import _lu` asks for the attribute first.  If there is none, Python imports the module.
    if not name.startswith("_") or name in ("__all__", "__version__"):
        public = vars(_import_module("tcsolve._public"))
        if name in public:
            return globals().setdefault(name, public[name])
    raise AttributeError(f"module 'tcsolve' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__getattr__("__all__"), "__version__", "matrices"})
