"""A study as data: its matrices, plans and settings; from a call or from a TOML file."""

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tcsolve._arguments import require_switch
from tcsolve._errors import InputError
from tcsolve._study.cases import expand_cases
from tcsolve._study.plans import expand_plans
from tcsolve._study.rows import Settings, canonical

__all__ = ["DEVICES", "RIGHT_SIDES", "Spec", "read_study_file"]

DEVICES, RIGHT_SIDES = ("auto", "cpu", "cuda"), ("ones", "random")
# The keys of a study file.  All but the title are arguments of `tcsolve.study`.
KEYS = ("matrices", "plans", "seed", "rhs", "device", "history", "spectrum", "energy", "title")


@dataclass(frozen=True)
class Spec:
    """The runs of a study.

    Attributes
    ----------
    cases : list of Case
    plans : list of NamedPlan
    settings : Settings
        They include the hash of the whole study, under 'study'.
    """

    cases: list
    plans: list
    settings: Settings

    @classmethod
    def of(cls, matrices, plans, *, folder=None, scratch=None, **settings):
        """Return the spec for the arguments of `tcsolve.study`."""
        _check(settings)
        cases, plans = expand_cases(matrices, folder, scratch), expand_plans(plans)
        settings = Settings(settings)
        taken = [case for case in cases if not case.is_left_out]
        data = [
            [case.identity() for case in taken],
            [case.filters.given() for case in taken],
            [plan.identity() for plan in plans],
            settings.identity,
        ]
        settings["study"] = hashlib.sha256(canonical(data).encode()).hexdigest()[:16]
        return cls(cases, plans, settings)


def read_study_file(path):
    """Return the arguments of `tcsolve.study` that a TOML file holds.

    Names of files in it are relative to its folder.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise InputError(f"study: {path} cannot be read: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"study: {path} is not a TOML file: {error}") from error
    unknown = sorted(found.keys() - set(KEYS))
    if unknown:
        raise InputError(f"study: {path} has {', '.join(unknown)}; it may have {', '.join(KEYS)}")
    for key in ("history", "energy"):
        found |= {key: require_switch(f"study: {path}: {key}", found[key])} if key in found else {}
    for key in ("matrices", "plans"):
        if not isinstance(found.get(key), list):
            raise InputError(f"study: {path} needs a list of {key}: [[{key}]] or {key} = [...]")
    found["matrices"] = [_placed(entry, path.parent) for entry in found["matrices"]]
    found.pop("title", None)
    return found


def _placed(entry, folder):
    """Return an entry with the names of its files as paths from the folder of the study file."""
    if isinstance(entry, str):
        return entry if entry.startswith(("gen:", "ss:")) else str(folder / entry)
    if not isinstance(entry, dict) or "file" not in entry:
        return entry
    names = entry["file"] if isinstance(entry["file"], list) else [entry["file"]]
    return {**entry, "file": [str(folder / name) for name in names]}


def _check(settings):
    for name, known in (("device", DEVICES), ("rhs", RIGHT_SIDES)):
        if settings[name] not in known:
            raise InputError(
                f"study: {name} is {settings[name]!r}, needs one of {', '.join(known)}"
            )
    for name in ("seed", "spectrum"):
        value = settings[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError(f"study: {name} is {value!r}, needs an integer that is not negative")
