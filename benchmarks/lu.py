"""How fast is the LU alone, with and without row swaps, compared with getrf of cuSOLVER?

    python benchmarks/lu.py --n 8192 16384 32768 --precision fp16 fp16x3
    python benchmarks/lu.py --draw                       # the table from the JSON again; no GPU

The measured time is that of the factorization of an FP32 copy of A in place, with partial pivoting and all
row swaps, as in a solve.  In dominant matrices, pivots that are expected on the diagonal are not searched.
Copying is not timed.  getrf gets A in column-major order, in FP32 and in FP64.  The rate is 2/3 n^3 over
the time; fp16x3 computes three products, but the rate counts the operations of one.

Factors are valid if max_i |P A v - L (U v)|_i <= (2 u + sqrt(n) w) max_i sqrt(sum_jk (l_ik u_kj)^2) for a
random vector v of -1 and 1, in FP64.  u is the roundoff of the update, and w that of the factors.  This is
the size of independent rounding errors (see Higham and Mary 2019).  A bound by |L| |U| would accept wrong
factors for large n.

The page also gives the time of all panels, which run one after the other: once with updates at the same time,
and once without look-ahead.
"""

import math

import numpy as np
from _harness import RESULTS, arguments, device_seconds, gpu, machine, save, summary, unless_drawn
from _profile import alone_times, chain, panel_times
from hpl_mxp import blocks, lu_tflops
from roofline import Factoring, require_torch
from tables import source, table

VENDOR = {"sgetrf": "fp32", "dgetrf": "fp64"}


# ---- checking ----------------------------------------------------------------------------------


def factor_error(xp, a, order, lu, seed=1):
    """Return max |A[order] v - L (U v)| relative to the size of sums of independent errors; NaN for NaN."""
    n = len(a)
    v = xp.asarray(np.random.default_rng(seed).choice([-1.0, 1.0], n))
    error, upper, squares, size = (xp.empty(n) for _ in range(4))
    for i, j in blocks(n):
        part = xp.triu(lu[i:j].astype(np.float64), k=i)
        upper[i:j], squares[i:j] = part @ v, (part**2).sum(axis=1)
    for i, j in blocks(n):
        part = xp.tril(lu[i:j].astype(np.float64), k=i - 1)
        error[i:j] = a[order[i:j]] @ v - (part @ upper + upper[i:j])
        size[i:j] = part**2 @ squares + squares[i:j]
    return float(xp.abs(error).max() / xp.sqrt(size.max()))


def limit(precision, n):
    """Return the largest allowed value of `factor_error`."""
    from tcsolve._arithmetic.formats import FORMATS, UPDATES

    update = UPDATES[precision]
    return (
        2 * update.u + math.sqrt(n) * FORMATS["fp32" if update.storage == "float32" else "fp64"].u
    )


def order_of(ipiv):
    """Return the order of the rows after LAPACK's (zero-based) row swaps, on the host."""
    order = np.arange(len(ipiv))
    for i, j in enumerate(ipiv):
        order[[i, j]] = order[[j, i]]
    return order


# ---- measuring ---------------------------------------------------------------------------------


class Ours(Factoring):
    """Our LU of a, with look-ahead."""

    def factor(self, w):
        """Return the factors of w, which is overwritten."""
        return self.run(w, look_ahead=True)

    def taken(self, factors):
        """Return the packed factors and the order of the rows."""
        if factors.misled:
            raise SystemExit(
                "A seems diagonally dominant by its row and column sums, but the LU disproves it: not timed"
            )
        return factors.lu, factors.order

    def profile(self):
        """Return the times of the chain of panels with look-ahead, and of the panels without it."""
        beside, serial = (self.spans(look_ahead) for look_ahead in (True, False))
        alone = alone_times(panel_times(serial, self.panels, self.strips()))
        return {"chain": chain(beside), "alone": alone}


class Vendor:
    """The LU of a by getrf of cuSOLVER, with the same methods."""

    def __init__(self, a, precision):
        self.a, self.dtype = a, np.float32 if precision == "fp32" else np.float64

    def copy(self):
        """Return a matrix that `factor` will overwrite."""
        return self.a.astype(self.dtype, order="F")

    def factor(self, w):
        """Return the factors of w, which is overwritten."""
        from cupyx.scipy.linalg import lu_factor

        return lu_factor(w, overwrite_a=True, check_finite=False)

    def taken(self, factors):
        """Return the packed factors and the order of the rows."""
        import cupy

        lu, ipiv = factors
        return lu, cupy.asarray(order_of(ipiv.get()))

    def profile(self):
        """Return an empty dict, because the kernels of cuSOLVER are not recorded."""
        return {}


def measure(a, family, name, repeats):
    """Return the row of one way to factor; the factors are checked first."""
    import cupy

    n, precision = len(a), VENDOR.get(name, name)
    way = (Vendor if name in VENDOR else Ours)(a, precision)
    lu, order = way.taken(way.factor(way.copy()))
    row = {"n": n, "family": family, "what": name, "limit": limit(precision, n)}
    row["error"] = factor_error(cupy, a, order, lu)
    row["moved"] = int((order != cupy.arange(n)).sum())
    if not row["error"] <= row["limit"]:
        raise SystemExit(f"{line(row)}: not timed")
    del lu, order
    row["seconds"] = summary(device_seconds(way.factor, repeats, prepare=way.copy))
    return row | way.profile()


# ---- writing -----------------------------------------------------------------------------------


def line(row):
    """Return the printed line of a row."""
    told = f"{row['family']:15} {row['n']:6} {row['what']:7} {row['moved']:6} rows moved"
    told += f"  error {row['error']:.1e} (at most {row['limit']:.1e})"
    if "seconds" not in row:
        return told
    median = row["seconds"]["median"]
    return f"{told}  {1e3 * median:9.2f} ms {lu_tflops(row['n'], median):6.1f} TFLOP/s"


def panel_cells(row):
    """Return the times in and between panels with look-ahead, and the time of panels without it, as cells."""
    chain, alone = row.get("chain"), row.get("alone")
    return [
        f"{1e3 * chain['inside']:.1f} + {1e3 * chain['between']:.1f}" if chain else "-",
        f"{1e3 * alone[1]:.1f}" if alone else "-",
    ]


def page(facts, rows):
    """Return the Markdown page of the rows."""
    body = [
        [
            *(row["family"], row["n"], row["what"], row["moved"]),
            f"{1e3 * row['seconds']['median']:.2f}",
            f"{lu_tflops(row['n'], row['seconds']['median']):.0f}",
            *panel_cells(row),
            f"{row['error']:.1e} / {row['limit']:.1e}",
        ]
        for row in rows
    ]
    head = ["family", "n", "by", "rows moved", "LU, ms", "TFLOP/s"]
    head += ["panels + between, ms", "alone, ms", "error / at most"]
    told = "`benchmarks/lu.py` says what is timed and how the error is defined."
    told += (
        " *panels + between*: the time in panels and the time between them, from the start of the first panel"
        " to the end of the last, with look-ahead. *alone*: the time of all panels without look-ahead,"
        " including the work between the strips of a panel."
    )
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
    require_torch()
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
