"""The contract of scipy.linalg.solve, item by item, against SciPy itself on the same input."""

import inspect
import itertools
import warnings

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import tcsolve.matrices
from bounds import MET, forward_ratio, host, ratio
from systems import growth_both_ways

import tcsolve

RNG_SEED = 20
DTYPES = "?bBiqefdgFDG"
NAMES = (
    None,
    "general",
    "gen",
    "diagonal",
    "tridiagonal",
    "banded",
    "upper triangular",
    "lower triangular",
    "symmetric",
    "sym",
    "hermitian",
    "her",
    "positive definite",
    "pos",
)


@pytest.fixture
def rng():
    return np.random.default_rng(RNG_SEED)


def theirs(a, b, **options):
    """Return SciPy's x, and ignore its warnings about deprecated dtypes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return scipy.linalg.solve(a, b, **options)


def told(a, b, **options):
    """Return our x, and ignore warnings that A contradicts `assume_a`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*contradict assume_a", tcsolve.AccuracyWarning)
        return tcsolve.solve(a, b, **options)


def outcome(solve, a, b, **options):
    """Return the kind of error that solve(a, b) raises, or None, and the categories of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            solve(a, b, **options)
        except scipy.linalg.LinAlgError:
            return "LinAlgError", []
        except Exception as error:
            builtin = next(c for c in type(error).__mro__ if c.__module__ == "builtins")
            return builtin.__name__, []
    kept = (w.category for w in caught if not issubclass(w.category, DeprecationWarning))
    return None, [category.__name__ for category in kept]


def general(rng, n=4, dtype=float):
    """Return a well-conditioned matrix without any structure that SciPy looks for."""
    a = rng.standard_normal((n, n)) + n * np.eye(n)
    if np.dtype(dtype).kind == "c":
        a = a + 1j * rng.standard_normal((n, n))
    return a.astype(dtype)


def structured(name, rng, n=6, dtype=float):
    """Return a matrix with the structure of that name."""
    a = general(rng, n, dtype)
    spd = a @ a.conj().T
    return {
        "diagonal": np.diag(np.diag(a)),
        "tridiagonal": np.triu(np.tril(a, 1), -1),
        "banded": np.triu(np.tril(a, 2), -2),
        "upper": np.triu(a),
        "lower": np.tril(a),
        "sym": a + a.T,
        "her": a + a.conj().T - 10 * np.eye(n),
        "pos": (spd + spd.conj().T) / 2,
    }[name]


# ---- signature and arguments


def test_the_arguments_are_scipys_in_its_order_then_keywords_only():
    ours = inspect.signature(tcsolve.solve).parameters
    scipys = inspect.signature(scipy.linalg.solve).parameters

    assert list(ours)[: len(scipys)] == list(scipys)
    for name, parameter in scipys.items():
        assert ours[name].default == parameter.default, name
        assert ours[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD, name
    more = list(ours.values())[len(scipys) :]
    assert [p.name for p in more] == ["precision", "device", "residual"]
    assert {p.kind for p in more} == {inspect.Parameter.KEYWORD_ONLY}


def test_all_of_scipys_arguments_may_be_positional(xp, rng):
    a, b = general(rng), np.ones(4)

    x = tcsolve.solve(xp.asarray(a), xp.asarray(b), False, False, False, True, "general", True)

    assert ratio(a.T, x, b) <= MET


def test_sym_pos_is_gone(rng):
    with pytest.raises(TypeError, match="sym_pos"):
        tcsolve.solve(general(rng), np.ones(4), sym_pos=True)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_a_structure_is_accepted(xp, rng, name):
    a, b = structured("diagonal", rng), np.ones(6)

    x = tcsolve.solve(xp.asarray(a), xp.asarray(b), assume_a=name)

    assert ratio(a, x, b) <= MET


@pytest.mark.parametrize("name", ["SYM", "diag", "GEN", "General", "", "positive_definite"])
def test_any_other_name_is_refused_with_the_names_there_are(xp, rng, name):
    a, b = general(rng), np.ones(4)
    with pytest.raises(ValueError):
        theirs(a, b, assume_a=name)
    with pytest.raises(ValueError, match="not a recognized matrix structure.*'tridiagonal'"):
        tcsolve.solve(xp.asarray(a), xp.asarray(b), assume_a=name)


def test_an_unhashable_structure_is_an_input_error(rng):
    with pytest.raises(tcsolve.InputError, match="recognized"):
        tcsolve.solve(general(rng), np.ones(4), assume_a=["gen"])


@pytest.mark.parametrize("precision", ["fp8", "", None, 16])
def test_an_unknown_precision_is_refused_with_the_names_there_are(rng, precision):
    with pytest.raises(ValueError, match="fp16x3"):
        tcsolve.solve(general(rng), np.ones(4), precision=precision)


def test_an_unknown_device_is_refused(rng):
    with pytest.raises(ValueError, match="'cpu' or 'cuda'"):
        tcsolve.solve(general(rng), np.ones(4), device="gpu")


@pytest.mark.parametrize("convert", [np.ndarray.tolist, np.matrix, memoryview])
def test_array_likes_are_taken_and_a_plain_array_returned(rng, convert):
    a, b = general(rng), np.ones((4, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        x = tcsolve.solve(convert(a), convert(b))

    assert type(x) is np.ndarray
    assert np.array_equal(x, tcsolve.solve(a, b))


@pytest.mark.parametrize(
    "bad, message",
    [
        (scipy.sparse.csr_array(np.eye(4)), "sparse"),
        (scipy.sparse.eye(4).tocoo(), "sparse"),
        (np.ma.masked_array(np.eye(4), np.zeros((4, 4), bool)), "masked"),
        (np.eye(4).astype(object), "object"),
        (np.eye(4).astype(str), "<U"),
        ([["x"] * 4] * 4, "<U"),
        (np.eye(4).astype("datetime64[s]"), "datetime64"),
        ([[1.0, 2.0], [3.0]], "rectangular"),
    ],
)
def test_what_is_not_a_dense_array_of_numbers_is_refused_by_name(bad, message):
    for a, b in ((bad, np.ones(4)), (np.eye(4), bad)):
        with pytest.raises(tcsolve.InputError, match=message):
            tcsolve.solve(a, b)


@pytest.mark.gpu
def test_arrays_of_two_libraries_are_refused(cupy, rng):
    a, b = general(rng), np.ones(4)
    for pair in ((cupy.asarray(a), b), (a, cupy.asarray(b))):
        with pytest.raises(tcsolve.InputError, match="cupy and numpy"):
            tcsolve.solve(*pair)


# ---- NaN and Inf


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1j * np.nan])
@pytest.mark.parametrize("where", ["a", "b"])
@pytest.mark.parametrize("assume_a", [None, "gen", "sym", "pos", "diagonal", "upper triangular"])
def test_a_nan_or_inf_anywhere_is_refused(xp, rng, value, where, assume_a):
    dtype = complex if np.iscomplexobj(value) else float
    system = {"a": structured("pos", rng, 4, dtype), "b": np.ones(4, dtype)}
    # In a, take an entry of the triangle that the structure does not read.
    system[where][(-1, 0) if where == "a" else 0] = value
    with pytest.raises(ValueError, match="must not contain infs or NaNs"):
        theirs(system["a"], system["b"], assume_a=assume_a)
    with pytest.raises(ValueError, match=f"must not contain infs or NaNs: {where} does"):
        tcsolve.solve(xp.asarray(system["a"]), xp.asarray(system["b"]), assume_a=assume_a)


def test_an_unchecked_nan_in_a_gives_nan_and_a_warning(xp, rng):
    a, b = general(rng), np.ones((4, 2))
    a[1, 2] = np.nan
    assert outcome(theirs, a, b, check_finite=False) == (None, ["LinAlgWarning"])

    with pytest.warns(tcsolve.LinAlgWarning, match="rcond = 0.0"):
        x = tcsolve.solve(xp.asarray(a), xp.asarray(b), check_finite=False)

    assert np.isnan(host(x)).all()


def test_an_unchecked_nan_in_b_gives_nan_in_its_column_alone_without_a_warning(xp, rng):
    a, b = general(rng), np.ones((4, 3))
    b[2, 1] = np.nan
    expected = theirs(a, b, check_finite=False)
    assert np.isnan(expected[:, 1]).all()

    x = host(tcsolve.solve(xp.asarray(a), xp.asarray(b), check_finite=False))

    assert np.isnan(x[:, 1]).all()
    assert ratio(a, x[:, [0, 2]], b[:, [0, 2]]) <= MET


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("name", ["pos", "sym", "her"])
def test_an_unchecked_nan_in_the_unread_triangle_does_no_harm(xp, rng, name, lower):
    a, b = structured("pos", rng), np.ones(6)
    spoilt = a.copy()
    spoilt[(0, 5) if lower else (5, 0)] = np.nan

    x = tcsolve.solve(
        xp.asarray(spoilt), xp.asarray(b), lower=lower, check_finite=False, assume_a=name
    )

    assert ratio(a, x, b) <= MET


# ---- dtypes


@pytest.mark.parametrize("types", list(itertools.product(DTYPES, DTYPES)), ids="".join)
def test_the_dtype_of_x_is_scipys(types):
    a = np.array([[2, 1, 0], [1, 3, 1], [1, 0, 4]]).astype(types[0])
    b = np.array([1, 0, 1]).astype(types[1])
    expected = theirs(a, b)

    x = tcsolve.solve(a, b)

    assert x.dtype == expected.dtype
    assert forward_ratio(a.astype(expected.dtype), x, expected) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("types", list(itertools.product("?iqefdFD", "?iqefdFD")), ids="".join)
def test_the_dtype_of_x_on_the_device_is_scipys(cupy, types):
    a = np.array([[2, 1, 0], [1, 3, 1], [1, 0, 4]]).astype(types[0])
    b = np.array([1, 0, 1]).astype(types[1])
    expected = theirs(a, b)

    x = tcsolve.solve(cupy.asarray(a), cupy.asarray(b))

    assert x.dtype == expected.dtype
    assert forward_ratio(a.astype(expected.dtype), host(x), expected) <= 1


def test_bfloat16_counts_as_a_16_bit_float():
    import ml_dtypes

    a = np.eye(3, dtype=ml_dtypes.bfloat16) * 2
    assert tcsolve.solve(a, np.ones(3, np.float32)).tolist() == [0.5, 0.5, 0.5]
    assert tcsolve.solve(a, np.ones(3, np.float32)).dtype == np.float32


def test_a_complex_dtype_gives_a_complex_answer_even_if_it_is_real(xp):
    x = tcsolve.solve(xp.asarray(np.diag([1.0, 2])), xp.asarray(np.ones(2, complex)))

    assert x.dtype == np.complex128


def test_integers_are_solved_in_double(xp, rng):
    a = rng.integers(-9, 9, (5, 5)) + 40 * np.eye(5, dtype=int)
    b = rng.integers(-9, 9, 5)

    x = tcsolve.solve(xp.asarray(a), xp.asarray(b))

    assert x.dtype == np.float64
    assert ratio(a.astype(float), x, b.astype(float)) <= MET


# ---- memory


@pytest.mark.parametrize("precision", ["auto", "fp16x3", "fp64"])
@pytest.mark.parametrize("view", ["transposed", "strided", "negative", "broadcast b", "read-only"])
def test_any_strides_give_the_same_answer(xp, rng, view, precision):
    a, b = general(rng, 20), rng.standard_normal((20, 3))
    if view == "transposed":
        given = xp.asarray(a.T.copy()).T, xp.asarray(b.T.copy()).T
    elif view == "strided":
        given = [xp.asarray(np.kron(v, np.ones((3, 2))))[::3, ::2] for v in (a, b)]
    elif view == "negative":
        given = xp.asarray(a[::-1, ::-1].copy())[::-1, ::-1], xp.asarray(b[::-1].copy())[::-1]
    elif view == "broadcast b":
        b = np.broadcast_to(b[:, :1], (20, 3))
        given = xp.asarray(a), xp.broadcast_to(xp.asarray(b[:, :1].copy()), (20, 3))
    else:
        given = xp.asarray(a), xp.asarray(b)
        if xp is np:
            for array in given:
                array.flags.writeable = False

    x = tcsolve.solve(*given, precision=precision)

    assert ratio(a, x, b) <= MET


@pytest.mark.parametrize("precision", ["auto", "fp16x3", "fp64"])
@pytest.mark.parametrize("dtype", [">f8", ">f4", ">c16", ">i4"])
def test_big_endian_input_is_taken(rng, dtype, precision):
    native = np.dtype(dtype).newbyteorder("=")
    a, b = (10 * general(rng, 9)).astype(native), np.arange(9).astype(native)

    x = tcsolve.solve(a.astype(dtype), b.astype(dtype), precision=precision)

    assert x.dtype == theirs(a, b).dtype and x.dtype.isnative
    assert ratio(a.astype(x.dtype), x, b.astype(x.dtype)) <= MET


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_unaligned_input_is_taken(rng, dtype):
    a = general(rng, 9, dtype)
    bytes_ = np.zeros(a.nbytes + 1, np.uint8)
    unaligned = np.frombuffer(bytes_.data, dtype, a.size, offset=1).reshape(a.shape)
    unaligned[...] = a
    assert not unaligned.flags.aligned

    x = tcsolve.solve(unaligned, a[0])

    assert ratio(a, x, a[0]) <= MET


# ---- shapes

SHAPES = [
    ((4, 4), (4,)),
    ((4, 4), (4, 1)),
    ((4, 4), (4, 3)),
    ((5, 4, 4), (4,)),
    ((5, 4, 4), (4, 4)),
    ((5, 4, 4), (5, 4, 2)),
    ((4, 4), (5, 4, 2)),
    ((3, 1, 4, 4), (2, 4, 2)),
    ((2, 3, 4, 4), (2, 3, 4, 1)),
    ((1, 1), (2, 3)),
    ((1, 1), (7,)),
    ((1, 1, 1), (5,)),
    ((1, 1, 1), (1, 1)),
    ((2, 1, 1), ()),
    ((1, 1, 1), (1, 1, 4)),
    ((1, 1, 1, 1), (1, 1, 2)),
    ((1,), (1,)),
    ((1,), (3, 2)),
    ((), ()),
    ((), (3,)),
    ((), (1, 2, 2)),
    ((0, 0), (0,)),
    ((0, 0), (0, 3)),
    ((4, 4), (4, 0)),
    ((0, 4, 4), (4,)),
    ((0, 4, 4), (4, 2)),
    ((2, 0, 0), (0, 5)),
    ((1, 1), (0,)),
    ((1, 1), (1, 0)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", "dFi")
def test_the_shape_of_x_is_scipys(xp, rng, shapes, dtype):
    a = rng.standard_normal(shapes[0]) + 8 * np.eye(*(shapes[0][-2:] or (1, 1)))
    a, b = (4 * a).reshape(shapes[0]).astype(dtype), rng.standard_normal(shapes[1]) * 9
    b = b.astype(dtype)
    expected = theirs(a, b)

    x = tcsolve.solve(xp.asarray(a), xp.asarray(b))

    assert isinstance(x, xp.ndarray)
    assert (x.shape, x.dtype) == (expected.shape, expected.dtype)
    slack = 256 * np.finfo(expected.dtype).eps
    scale = np.abs(expected).max(initial=0)
    np.testing.assert_allclose(host(x), expected, rtol=slack, atol=slack * scale)


@pytest.mark.parametrize(
    "shapes, message",
    [
        (((3, 4), (3,)), r"Expected square matrix: a has shape \(3, 4\)"),
        (((4,), (4,)), "Expected square matrix"),
        (((2, 4, 3), (4,)), "Expected square matrix"),
        (((4, 4), (5,)), r"incompatible shapes.*\(5,\).*needs 4 rows"),
        (((4, 4), (1, 4)), "needs 4 rows"),
        (((4, 4), ()), "needs 4 rows"),
        (((5, 4, 4), (5, 4)), "needs 4 rows"),
        (((5, 4, 4), (3, 4, 2)), "do not broadcast"),
        (((0, 0), (3,)), "needs 0 rows"),
        (((4, 0), (4,)), "Expected square matrix"),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit_are_refused_with_what_is_needed(xp, shapes, message):
    a, b = (np.ones(shape) for shape in shapes)
    assert outcome(theirs, a, b)[0] == "ValueError"
    with pytest.raises(ValueError, match=message):
        tcsolve.solve(xp.asarray(a), xp.asarray(b))


def test_a_zero_of_one_element_is_singular(xp):
    for a in (0.0, [0.0], [[0.0]], [[[0.0]]]):
        assert outcome(theirs, a, [1.0])[0] == "LinAlgError"
        with pytest.raises(tcsolve.LinAlgError, match="singular"):
            tcsolve.solve(xp.asarray(a), xp.asarray([1.0]))


def test_an_empty_right_hand_side_asks_nothing_of_the_matrix(xp):
    x = tcsolve.solve(xp.zeros((4, 4)), xp.zeros((4, 0)))

    assert x.shape == (4, 0)


def test_a_nan_is_refused_even_if_nothing_is_asked(xp):
    a, b = np.full((4, 4), np.nan), np.zeros((4, 0))
    assert outcome(theirs, a, b)[0] == "ValueError"
    with pytest.raises(ValueError, match="infs or NaNs: a does"):
        tcsolve.solve(xp.asarray(a), xp.asarray(b))


# ---- shape, dtype and order of x


@pytest.mark.parametrize("precision", ["auto", "fp16", "fp32", "fp64"])
@pytest.mark.parametrize("shape", [(20,), (20, 1), (20, 4)])
def test_x_is_a_new_writeable_c_contiguous_array(rng, shape, precision):
    a, b = general(rng, 20), rng.standard_normal(shape)

    x = tcsolve.solve(a, b, precision=precision)

    assert not (np.shares_memory(x, a) or np.shares_memory(x, b))
    assert x.flags.c_contiguous and x.flags.writeable
    assert theirs(a, b).flags.c_contiguous


@pytest.mark.parametrize("precision", ["auto", "fp16x3", "fp64"])
def test_a_and_b_may_be_the_same_array(xp, rng, precision):
    a = xp.asarray(general(rng, 20))

    x = tcsolve.solve(a, a, precision=precision)

    assert ratio(a, x, a) <= MET


# ---- structure


@pytest.mark.parametrize("dtype", [float, complex, np.float32])
@pytest.mark.parametrize(
    "name", ["diagonal", "tridiagonal", "banded", "upper", "lower", "sym", "her", "pos"]
)
def test_a_structure_not_named_is_solved_as_well_as_by_scipy(xp, rng, name, dtype):
    a = structured(name, rng, 12, dtype)
    b = rng.standard_normal((12, 2)).astype(dtype)

    x = tcsolve.solve(xp.asarray(a), xp.asarray(b))

    assert ratio(a, x, b) <= max(MET, ratio(a, theirs(a, b), b))


def test_structure_is_told_slice_by_slice(xp, rng):
    names = ("diagonal", "tridiagonal", "upper", "lower", "sym", "her", "pos")
    a, b = np.stack([structured(name, rng) for name in names]), np.ones(6)

    x = host(tcsolve.solve(xp.asarray(a), xp.asarray(b)))

    for matrix, column in zip(a, x, strict=True):
        assert ratio(matrix, column, b) <= MET


@pytest.mark.parametrize("eps", [1e-15, 1e-12])
def test_a_nearly_symmetric_matrix_is_not_taken_for_a_symmetric_one(xp, rng, eps):
    a, b = 1e-3 * structured("sym", rng, 30) + 2.0**40 * np.eye(30), np.ones(30)
    a[3, 17] *= 1 + 1e3 * eps
    a[0, 5] += 1.0
    expected = theirs(a, b)

    assert forward_ratio(a, tcsolve.solve(xp.asarray(a), xp.asarray(b)), expected) <= 1


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("name", NAMES[3:])
@pytest.mark.parametrize("dtype", [float, complex])
def test_a_named_structure_decides_what_is_read(xp, rng, name, lower, dtype):
    a = structured("pos", rng, 6, dtype) + np.triu(np.ones((6, 6)), 1) / 8
    a[0, 0] += 0.5j if dtype is complex else 0
    if name == "banded":
        lower = False  # SciPy detects the bandwidths, so it ignores no entry
    b = rng.standard_normal(6).astype(dtype)
    expected = theirs(a, b, assume_a=name, lower=lower)

    x = told(xp.asarray(a), xp.asarray(b), assume_a=name, lower=lower)

    assert forward_ratio(a, x, expected) <= 1


@pytest.mark.parametrize("name", ["sym", "her", "pos"])
def test_lower_chooses_the_triangle_that_is_read(xp, rng, name):
    a, b = structured("pos", rng), np.ones(6)
    for lower, triangle in ((False, np.triu(a)), (True, np.tril(a))):
        x = tcsolve.solve(xp.asarray(triangle), xp.asarray(b), lower=lower, assume_a=name)
        assert ratio(a, x, b) <= MET


@pytest.mark.parametrize("name", [None, "gen", "upper triangular", "diagonal", "banded"])
def test_lower_means_nothing_elsewhere(xp, rng, name):
    a, b = general(rng, 6), np.ones(6)
    expected = theirs(a, b, assume_a=name, lower=False)

    x = told(xp.asarray(a), xp.asarray(b), lower=True, assume_a=name)

    assert forward_ratio(a, x, expected) <= 1


@pytest.mark.parametrize("precision", ["auto", "fp16x3"])
def test_a_matrix_said_to_be_positive_definite_that_is_not_raises(xp, rng, precision):
    a, b = structured("pos", rng) - 40 * np.eye(6), np.ones(6)
    assert outcome(theirs, a, b, assume_a="pos")[0] == "LinAlgError"
    with pytest.raises(tcsolve.LinAlgError):
        tcsolve.solve(xp.asarray(a), xp.asarray(b), assume_a="pos", precision=precision)


@pytest.mark.parametrize("precision", ["auto", "fp16x3", "fp64"])
@pytest.mark.parametrize("name", NAMES)
def test_transposed_solves_with_the_transpose_in_every_structure(xp, rng, name, precision):
    a, b = general(rng, 6), rng.standard_normal((6, 2))
    expected = theirs(a, b, assume_a=name, transposed=True)
    if name in ("positive definite", "pos"):
        a = structured("pos", rng, 6)
        expected = theirs(a, b, assume_a=name, transposed=True)

    x = told(xp.asarray(a), xp.asarray(b), assume_a=name, transposed=True, precision=precision)

    assert forward_ratio(a, x, expected) <= 1


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("name", ["sym", "her", "pos"])
def test_transposed_reads_the_same_triangle(xp, rng, name, lower):
    a, b = structured("pos", rng, 6) + np.triu(np.ones((6, 6)), 1), np.ones(6)
    expected = theirs(a, b, assume_a=name, lower=lower, transposed=True)

    x = told(xp.asarray(a), xp.asarray(b), lower=lower, assume_a=name, transposed=True)

    assert forward_ratio(a, x, expected) <= 1


@pytest.mark.parametrize("n", [1, 4])
def test_transposed_complex_matrices_are_not_implemented(xp, rng, n):
    a, b = general(rng, n, complex), np.ones(n)
    assert outcome(theirs, a, b, transposed=True)[0] == "NotImplementedError"
    with pytest.raises(NotImplementedError, match=r"pass np\.swapaxes\(a, -1, -2\)"):
        tcsolve.solve(xp.asarray(a), xp.asarray(b), transposed=True)


# ---- errors and warnings


@pytest.mark.parametrize("precision", ["auto", "fp16", "fp32", "fp64"])
@pytest.mark.parametrize(
    "a",
    [np.zeros((3, 3)), np.ones((3, 3)), np.diag([1.0, 0, 2]), np.triu(np.ones((3, 3)), 1)],
    ids=["zeros", "ones", "diagonal", "triangle"],
)
def test_an_exactly_singular_matrix_raises_as_in_scipy(xp, a, precision):
    assert outcome(theirs, a, np.ones(3))[0] == "LinAlgError"
    with pytest.raises(tcsolve.LinAlgError, match="A singular matrix detected"):
        tcsolve.solve(xp.asarray(a), xp.ones(3), precision=precision)


def test_errors_are_also_of_the_classes_of_numpy_scipy_and_python():
    assert issubclass(tcsolve.SingularError, np.linalg.LinAlgError)
    assert issubclass(tcsolve.SingularError, scipy.linalg.LinAlgError)
    assert issubclass(tcsolve.InputError, ValueError)
    assert issubclass(tcsolve.SingularError, tcsolve.TcsolveError)


def test_one_singular_slice_raises_for_the_stack(xp, rng):
    a = np.stack([general(rng), np.ones((4, 4)), general(rng)])
    assert outcome(theirs, a, np.ones(4))[0] == "LinAlgError"
    with pytest.raises(tcsolve.LinAlgError):
        tcsolve.solve(xp.asarray(a), xp.ones(4))


@pytest.mark.parametrize("precision", ["auto", "fp16", "fp16x3", "fp32", "fp64"])
@pytest.mark.parametrize("cond, categories", [(1e13, []), (1e17, ["LinAlgWarning"])])
def test_a_warning_comes_where_scipys_does(xp, cond, categories, precision):
    problem = tcsolve.matrices.generate("svd_geo", 40, cond=cond, seed=3)
    a, b = problem.a, problem.b
    assert outcome(theirs, a, b) == (None, categories)

    ours = outcome(tcsolve.solve, xp.asarray(a), xp.asarray(b), precision=precision)
    assert ours == (None, categories)


@pytest.mark.parametrize("exponent, categories", [(15.5, []), (15.8, ["LinAlgWarning"])])
@pytest.mark.parametrize("name", [None, "gen", "sym", "diagonal", "upper triangular"])
def test_a_warning_comes_where_scipys_does_in_every_structure(xp, exponent, categories, name):
    a, b = np.diag(10.0 ** -np.linspace(0, exponent, 8)), np.ones(8)
    assert outcome(theirs, a, b, assume_a=name) == (None, categories)

    assert outcome(tcsolve.solve, xp.asarray(a), xp.asarray(b), assume_a=name) == (None, categories)


@pytest.mark.parametrize("exponent, categories", [(5.5, []), (8.5, ["LinAlgWarning"])])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_the_warning_of_single_precision_goes_by_its_own_epsilon(xp, dtype, exponent, categories):
    problem = tcsolve.matrices.generate("svd_geo", 20, cond=10**exponent, dtype=dtype, seed=1)
    assert outcome(theirs, problem.a, problem.b) == (None, categories)

    ours = outcome(tcsolve.solve, xp.asarray(problem.a), xp.asarray(problem.b))
    assert ours == (None, categories)


def test_the_warning_names_rcond_and_points_at_the_caller(xp):
    problem = tcsolve.matrices.generate("svd_geo", 40, cond=1e17, seed=3)
    with pytest.warns(scipy.linalg.LinAlgWarning, match=r"rcond = \d") as record:
        x = tcsolve.solve(xp.asarray(problem.a), xp.asarray(problem.b))

    assert len(record) == 1
    assert record[0].filename == __file__
    assert ratio(problem.a, x, problem.b) <= MET


def test_dependent_rows_raise_or_warn(xp):
    a = np.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])

    ours = outcome(tcsolve.solve, xp.asarray(a), xp.ones(3))

    assert ours in (("LinAlgError", []), (None, ["LinAlgWarning"]))


@pytest.mark.parametrize("precision", ["auto", "fp16", "bf16", "tf32", "fp16x3", "fp32", "fp64"])
# Pairs whose x stays in the range of FP64.
@pytest.mark.parametrize(
    "scale_a, scale_b",
    [
        (1e-300, 1e-300),
        (1.0, 1.0),
        (1e300, 1e300),
        (1.0, 1e-300),
        (1.0, 1e300),
        (1e-300, 1.0),
        (1e300, 1.0),
    ],
)
def test_extreme_scales_are_solved_as_well_as_scale_one(xp, rng, scale_a, scale_b, precision):
    a, b = scale_a * general(rng, 20), scale_b * rng.standard_normal(20)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = tcsolve.solve(xp.asarray(a), xp.asarray(b), precision=precision)

    assert ratio(a, x, b) <= MET


@pytest.mark.parametrize("precision", ["auto", "fp16x3", "fp64"])
def test_rows_and_columns_of_extreme_scales_are_solved(xp, rng, precision):
    row, col = 10.0 ** rng.uniform(-120, 120, 20), 10.0 ** rng.uniform(-20, 20, 20)
    a = row[:, None] * general(rng, 20) * col
    b = a @ (1 / col)

    solution = tcsolve.solve_ex(xp.asarray(a), xp.asarray(b), precision=precision)

    assert solution.status.ok
    assert ratio(a, solution.x, b) <= MET


# ---- overwriting


@pytest.mark.parametrize("precision", ["auto", "fp16", "fp32", "fp64"])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("shape", [(30,), (30, 3)])
def test_inputs_are_left_alone_without_permission(xp, rng, shape, order, precision):
    a, b = (
        np.array(general(rng, 30), order=order),
        np.array(rng.standard_normal(shape), order=order),
    )
    given = xp.array(a, order=order), xp.array(b, order=order)

    tcsolve.solve(*given, precision=precision)

    assert np.array_equal(host(given[0]), a) and np.array_equal(host(given[1]), b)


@pytest.mark.parametrize("order", "CF")
def test_permission_to_overwrite_does_not_change_the_answer(xp, rng, order):
    a, b = np.array(general(rng, 30), order=order), np.ones((30, 2), order=order)
    plain = tcsolve.solve(xp.array(a, order=order), xp.array(b, order=order))

    x = tcsolve.solve(
        xp.array(a, order=order), xp.array(b, order=order), overwrite_a=True, overwrite_b=True
    )

    assert np.array_equal(host(x), host(plain))


@pytest.mark.parametrize("solve", [tcsolve.solve, lambda *a, **k: tcsolve.solve_ex(*a, **k).x])
def test_lent_arrays_are_the_workspace_and_the_answer(rng, solve):
    a, b = np.asfortranarray(general(rng, 30)), np.ones(30)
    kept = a.copy()

    x = solve(a, b, overwrite_a=True, overwrite_b=True)

    assert np.shares_memory(x, b) and not np.array_equal(a, kept)
    assert ratio(kept, x, np.ones(30)) <= MET


@pytest.mark.parametrize("dtype", [np.float32, int])
def test_memory_of_another_dtype_is_not_used(rng, dtype):
    a, b = general(rng, 30), np.arange(30).astype(dtype)

    x = tcsolve.solve(a, b, overwrite_b=True)

    assert x.dtype == float and np.array_equal(b, np.arange(30))


def test_lent_memory_is_not_read_when_the_ladder_follows(rng):
    a = np.asfortranarray(growth_both_ways(60))  # so LAPACK alone misses the bound
    kept, b = a.copy(order="F"), rng.standard_normal(120)

    report = tcsolve.solve_ex(a, b, overwrite_a=True)

    assert report.iterations.max() > 0 and not np.array_equal(a, kept)
    assert np.array_equal(report.x, tcsolve.solve_ex(kept, b).x)


def test_one_array_in_both_places_is_not_overwritten(rng):
    a = np.asfortranarray(general(rng, 30))
    kept = a.copy()

    x = tcsolve.solve(a, a, overwrite_a=True, overwrite_b=True)

    assert np.array_equal(a, kept) and ratio(kept, x, kept) <= MET


def test_a_read_only_array_is_never_overwritten(rng):
    a, b = np.asfortranarray(general(rng, 30)), np.ones(30)
    kept = a.copy()
    a.flags.writeable = b.flags.writeable = False

    tcsolve.solve(a, b, overwrite_a=True, overwrite_b=True)

    assert np.array_equal(a, kept) and (b == 1).all()
