"""How much does scaling by powers of two help for badly scaled matrices, without a fallback?

TCSOLVE_MATRICES=folder python benchmarks/scaling.py --json FILE --markdown FILE
"""

from pathlib import Path

import numpy as np
from _harness import arguments, machine, save

from tcsolve import Plan, matrices, solve_ex

# A matrix is taken if scaling reduces its condition number by at least this factor.
GAIN = 1e2


def runs(problem):
    """Yield one result for each low precision, without and with scaling."""
    for update in ("fp16", "fp16x3"):
        for scale in (False, True):
            plan = Plan(update, scale=scale, fallback=False)
            solution = solve_ex(problem.a, problem.b, assume_a="general", precision=plan)
            error = float(np.abs(solution.x - problem.x_true).max())
            yield {
                "update": update,
                "scale": scale,
                "status": solution.status.name,
                "steps": int(solution.iterations[0]),
                "backward_error": float(solution.backward_error[0]),
                "forward_error": error,
            }


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--max-n", type=int, default=1600)
    parser.add_argument("--markdown", type=Path, required=True)
    options = parser.parse_args()
    facts, rows = machine(options.commit), []
    lines = ["# Scaling on badly scaled matrices, without fallback", ""]
    lines += ["Each cell: status, steps, forward error. The exact x has only ones.", ""]
    head = ["matrix", "cond", "cond scaled", "fp16", "fp16 scaled", "fp16x3", "fp16x3 scaled"]
    lines += ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for entry in sorted(matrices.index(), key=lambda e: e["n"]):
        cond, scaled = entry["cond_est_1norm"], entry["cond_est_1norm_equilibrated"]
        if entry["n"] > options.max_n or not cond >= GAIN * scaled:
            continue
        results = list(runs(matrices.load(entry["name"])))
        rows.append({"matrix": entry["name"], "cond": cond, "cond_scaled": scaled, "runs": results})
        cells = [f"{r['status'].lower()} {r['steps']} {r['forward_error']:.0e}" for r in results]
        lines.append(
            "| " + " | ".join([entry["name"], f"{cond:.0e}", f"{scaled:.0e}", *cells]) + " |"
        )
        print(lines[-1], flush=True)
    save(options.json, facts, rows)
    where = f"`benchmarks/scaling.py`, {facts['cpu']}, commit {facts['commit']}, {facts['date']}"
    options.markdown.write_text("\n".join([*lines, "", where]) + "\n")


if __name__ == "__main__":
    main()
