"""Mistakes that a type checker must find, each with the kind of its error."""

import numpy as np

import tcsolve
from tcsolve import matrices

A, B = np.eye(2), np.ones(2)

# Each line below has one mistake.
tcsolve.solve(A)  # call-overload
tcsolve.solve(A, B, precision="fp17")  # call-overload
tcsolve.solve(A, B, assume_a="toeplitz")  # call-overload
tcsolve.solve(A, B, device="gpu")  # call-overload
_ = tcsolve.solve(A, B).status  # attr-defined
tcsolve.solve_ex(A, B, tolerance=1e-8)  # call-overload
tcsolve.solve_ex(A, B, precision="fp17")  # call-overload
_ = tcsolve.solve_ex(A, B).answer  # attr-defined
tcsolve.solve_ex(A, B).x = B  # misc
tcsolve.factor()  # call-arg
tcsolve.factor(A, precision="fp17")  # arg-type
tcsolve.factor(A, assume_a="pos")  # arg-type
tcsolve.factor(A).solve()  # call-overload
tcsolve.factor(A).solve_ex(B, precision="fp64")  # call-overload
tcsolve.factor(A).precision = "fp64"  # misc
tcsolve.refine(A, B)  # call-overload
tcsolve.refine(A, B, A)  # call-overload
tcsolve.refine(A, B, lambda r: r, max_steps=1.5)  # call-overload
tcsolve.gemm(A)  # call-overload
tcsolve.gemm(A, A, alpha="2")  # call-overload
tcsolve.gemm(A, A, refine="all")  # call-overload
tcsolve.gemm(A, A, engine="wgmma")  # call-overload
tcsolve.gemm(A, A, out=[[0.0]])  # call-overload
tcsolve.gemm_batched(A, A, engine="naive")  # call-overload
tcsolve.gemm_batched(A, A, precision="fp17")  # call-overload
tcsolve.gemm_bound(A)  # call-arg
tcsolve.gemm_bound(A, A, precision="fp16x3")  # arg-type
tcsolve.Plan(update="fp8")  # arg-type
tcsolve.lstsq(A, B, lapack_driver="gels")  # call-overload
tcsolve.solve_triangular(A, B, trans=3)  # call-overload
tcsolve.study("gen:gauss:n=4", 3)  # arg-type
tcsolve.StudyTable([]).text("html")  # arg-type
tcsolve.Plan(method="qr")  # arg-type
tcsolve.Plan().update = "fp16"  # misc
_ = tcsolve.Status.FINE  # attr-defined
tcsolve.clear_cache(1)  # call-arg
_ = tcsolve.slove  # attr-defined
matrices.generate("hilbert")  # call-arg
matrices.generate("hilbert", 3, rhs="zeros")  # arg-type
matrices.load(3)  # arg-type
matrices.names(3)  # arg-type
matrices.index(3)  # arg-type
matrices.catalog(3)  # call-arg
