"""The plans of a study: grids of the fields of `Plan`, and of the precision of the residuals."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from tcsolve._errors import InputError
from tcsolve._plan import Plan
from tcsolve._solve.problem.request import RESIDUALS
from tcsolve._study.sweeps import sweep

__all__ = ["DEFAULTS", "PLAN_COLUMNS", "NamedPlan", "expand_plans"]

# A study asks what each precision does alone.  So no other precision follows, and a run may take many steps.
DEFAULTS = {"fallback": False, "max_steps": 500}
# The columns of a row that describe the plan.
PLAN_COLUMNS = (*(field.name for field in fields(Plan)), "residual")
# Other names of fields that a grid may use.
ALIASES = {"precision": "update"}


@dataclass(frozen=True)
class NamedPlan:
    """A `Plan` with its name in tables and pictures.

    Attributes
    ----------
    label : str
        The update, the method unless it is 'auto', the other fields that differ from the defaults of a study,
        and the residual unless it is 'fp64'.
    fields : dict
        All fields of the `Plan`.
    residual : {'fp64', 'double-double'}
        Precision of the residuals, as in `tcsolve.solve`.
    """

    label: str
    fields: dict
    residual: str = "fp64"

    @classmethod
    def of(cls, options):
        """Return the plan with these fields, the others as `DEFAULTS` and `Plan` have them."""
        for alias, field in ALIASES.items():
            if alias in options and field in options:
                raise InputError(f"study: a plan has {alias} and {field}, which are the same")
        options = DEFAULTS | {ALIASES.get(key, key): value for key, value in options.items()}
        residual = options.pop("residual", cls.residual)
        if residual not in RESIDUALS:
            raise InputError(
                f"study: residual is {residual!r}, needs one of {', '.join(RESIDUALS)}"
            )
        unknown = sorted(options.keys() - {field.name for field in fields(Plan)})
        if unknown:
            raise InputError(
                f"study: a plan has no {', '.join(u or repr(u) for u in unknown)}; it has "
                + ", ".join(PLAN_COLUMNS)
            )
        plan = Plan(**options)
        label = _label(plan) + ("" if residual == cls.residual else f" residual={residual}")
        return cls(label, asdict(plan), residual)

    def identity(self):
        """Return the data that decides how it solves."""
        extra = {} if self.residual == "fp64" else {"residual": self.residual}
        return {**self.fields, **extra}

    @property
    def columns(self):
        """The columns of a row that describe the plan."""
        return {**self.fields, "residual": self.residual}

    def plan(self):
        return Plan(**self.fields)


def expand_plans(given):
    """Return the plans that `given` describes, each once.

    Parameters
    ----------
    given : str, Plan, dict, or a list of them
        A name is an update.  A dict is a grid: its lists are swept.

    Returns
    -------
    list of NamedPlan
    """
    if isinstance(given, str | Plan | Mapping):
        given = [given]
    found = {}
    for item in given:
        for plan in _expanded(item):
            found.setdefault(plan.label, plan)
    if not found:
        raise InputError("study: no plans are given; name a precision, such as 'fp16'")
    return list(found.values())


def parse_grid(words):
    """Return the grid for words such as 'update=fp16,bf16' and 'scale=true,false'."""
    grid = {}
    for word in words:
        key, equals, values = word.partition("=")
        if not equals:
            raise InputError(f"study: --plan has {word!r}; write key=value or key=value,value")
        if key in grid:
            raise InputError(f"study: --plan has {key} twice; several values are {key}=value,value")
        grid[key] = [_value(text) for text in values.split(",")]
    return grid


def _expanded(item):
    if isinstance(item, Plan):
        # Not NamedPlan.of: the caller has chosen every field.
        return [NamedPlan(_label(item), asdict(item))]
    if isinstance(item, Mapping):
        return [NamedPlan.of(options) for options in sweep(dict(item))]
    if not isinstance(item, str):
        raise InputError(f"study: the plan is {item!r}; it must be a name, a Plan, or a dict")
    return [NamedPlan.of({"update": item})]


def _label(plan):
    usual = asdict(Plan()) | DEFAULTS
    words = [plan.update] + ([] if plan.method == "auto" else [plan.method])
    for key, value in asdict(plan).items():
        if key not in ("update", "method") and value != usual[key]:
            words.append(f"{key}={value}".replace("True", "yes").replace("False", "no"))
    return " ".join(words)


def _value(text):
    if text.lower() in ("true", "false", "yes", "no"):
        return text.lower() in ("true", "yes")
    if text.lower() == "none":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
