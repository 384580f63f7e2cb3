"""How fast is the LU alone, where rows move and where they do not, beside cuSOLVER's getrf?

    python benchmarks/lu.py --n 8192 16384 32768 --precision fp16 fp16x3
    python benchmarks/lu.py --draw                       # the table from the JSON again; no GPU

Timed is the factorization of an FP32 copy of A, in place, with partial pivoting and all row moves, as a solve
runs it; the copy is made before.  cuSOLVER's getrf gets A as it likes it, in FP32 and in FP64.  The rate is
2/3 n^3 over the time; fp16x3 takes three products and counts the operations of one.

Factors count if max |P A v - L (U v)| <= (u + sqrt(n) w) max (|L| (|U| |v|)) for a random v of -1 and 1,
in FP64: u is the roundoff of the update, w that of the factors (Higham and Mary 2019, with constant 1).
"""

import math

import numpy as np
from _harness import RESULTS, arguments, device_seconds, gpu, machine, save, summary, unless_drawn
from hpl_mxp import blocks, lu_tflops
from roofline import Factoring
from tables import source, table

VENDOR = {"sgetrf": "fp32", "dgetrf": "fp64"}


# ---- checking ----------------------------------------------------------------------------------


def factor_error(xp, a, order, lu, seed=1):
    """Return max |A[order] v - L (U v)| / max (|L| (|U| |v|)), NaN if the factors are not finite."""
    n = len(a)
    v = xp.asarray(np.random.default_rng(seed).choice([-1.0, 1.0], n))
    product, upper, magnitude, bound = (xp.empty(n) for _ in range(4))
    for i, j in blocks(n):
        part = lu[i:j].astype(np.float64)
        product[i:j] = a[order[i:j]] @ v
        upper[i:j] = xp.triu(part, k=i) @ v
        magnitude[i:j] = xp.triu(xp.abs(part), k=i) @ xp.abs(v)
    for i, j in blocks(n):
        lower = xp.tril(lu[i:j].astype(np.float64), k=i - 1)
        product[i:j] -= lower @ upper + upper[i:j]
        bound[i:j] = xp.abs(lower) @ magnitude + magnitude[i:j]
    return float(xp.abs(product).max() / bound.max())


def limit(precision, n):
    """Return what that error may be."""
    from tcsolve._formats import FORMATS, UPDATES

    update = UPDATES[precision]
    return update.u + math.sqrt(n) * FORMATS["fp32" if update.storage == "float32" else "fp64"].u


def order_of(ipiv):
    """Return the order of the rows of LAPACK's (zero-based) interchanges, on the host."""
    order = np.arange(len(ipiv))
    for i, j in enumerate(ipiv):
        order[[i, j]] = order[[j, i]]
    return order


# ---- measuring ---------------------------------------------------------------------------------


def ours(a, precision):
    """Return (factor, prepare, taken): factor(prepare()) factors, taken(of that) is (lu, order)."""
    factoring = Factoring(a, precision)

    def taken(factors):
        if factors.misled:
            raise SystemExit("A is not as dominant as it looks: not timed")
        return factors.lu, factors.order

    return lambda w: factoring.run(w, look_ahead=True), factoring.copy, taken


def vendor(a, precision):
    """Return the same of cuSOLVER's getrf."""
    import cupy
    from cupyx.scipy.linalg import lu_factor

    def prepare():
        return a.astype(np.float32 if precision == "fp32" else np.float64, order="F")

    def taken(factors):
        lu, ipiv = factors
        return lu, cupy.asarray(order_of(ipiv.get()))

    return lambda w: lu_factor(w, overwrite_a=True, check_finite=False), prepare, taken


def measure(a, family, name, repeats):
    """Return the row of one way to factor; the factors are checked first."""
    import cupy

    n, precision = len(a), VENDOR.get(name, name)
    factor, prepare, taken = (vendor if name in VENDOR else ours)(a, precision)
    lu, order = taken(factor(prepare()))
    row = {"n": n, "family": family, "what": name, "limit": limit(precision, n)}
    row["error"] = factor_error(cupy, a, order, lu)
    row["moved"] = int((order != cupy.arange(n)).sum())
    if not row["error"] <= row["limit"]:
        raise SystemExit(f"{line(row)}: not timed")
    del lu, order
    row["seconds"] = summary(device_seconds(factor, repeats, prepare=prepare))
    return row


# ---- writing -----------------------------------------------------------------------------------


def line(row):
    """Return the printed line of a row."""
    told = f"{row['family']:15} {row['n']:6} {row['what']:7} {row['moved']:6} rows moved"
    told += f"  error {row['error']:.1e} (at most {row['limit']:.1e})"
    if "seconds" not in row:
        return told
    median = row["seconds"]["median"]
    return f"{told}  {1e3 * median:9.2f} ms {lu_tflops(row['n'], median):6.1f} TFLOP/s"


def page(facts, rows):
    """Return the Markdown page of the rows."""
    body = [
        [
            *(row["family"], row["n"], row["what"], row["moved"]),
            f"{1e3 * row['seconds']['median']:.2f}",
            f"{lu_tflops(row['n'], row['seconds']['median']):.0f}",
            f"{row['error']:.1e} / {row['limit']:.1e}",
        ]
        for row in rows
    ]
    head = ["family", "n", "by", "rows moved", "LU, ms", "TFLOP/s", "error / at most"]
    told = "What is timed, and what the error is: see `benchmarks/lu.py`."
    parts = ["# The LU alone", told, table(head, body), source(facts, "benchmarks/lu.py")]
    return "\n\n".join(parts) + "\n"


def main():
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--n", type=int, nargs="+", default=[8192, 16384, 32768])
    parser.add_argument("--family", nargs="+", default=["gauss", "gauss_dominant"])
    parser.add_argument("--precision", nargs="+", default=["fp16", "fp16x3"])
    parser.set_defaults(json=RESULTS / "lu.json")
    options = unless_drawn(parser, page)
    if options is None:
        return
    import cupy
    from solve import matrix

    facts, rows = machine(options.commit) | gpu(), []
    for family in options.family:
        for n in options.n:
            a = matrix(family, n)
            for name in (*options.precision, *VENDOR):
                rows.append(measure(a, family, name, options.repeats))
                print(line(rows[-1]), flush=True)
                save(options.json, facts, rows)
                cupy.get_default_memory_pool().free_all_blocks()
            del a
    options.json.with_suffix(".md").write_text(page(facts, rows))


if __name__ == "__main__":
    main()
