# The types that CuPy would declare for its arrays if it had any.
from typing import Any

import numpy as np
from numpy.typing import NDArray

class ndarray:
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    @property
    def nbytes(self) -> int: ...
    dtype: np.dtype[Any]
    ndim: int
    shape: tuple[int, ...]
    size: int
    def __array__(self, dtype: Any = None) -> NDArray[Any]: ...
    def get(
        self,
        stream: Any = None,
        order: str = "C",
        out: NDArray[Any] | None = None,
        blocking: bool = True,
    ) -> NDArray[Any]: ...
