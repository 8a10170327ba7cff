"""A simulated CUDA device: tensors that say `cuda:0` and hold numbers of the CPU.

`with simulated_cuda() as device:` has one for some lines, and `device.waits` lists where the host
waited for the device. A test with the mark `cuda` has one where there is no real one.

What is simulated: where tensors are, that devices do not mix, what reads from the device or waits
for it, errors of cuSOLVER, pinned memory, graphs. What is not: rounding, random numbers, speed,
memory, streams. A tensor is a wrapper, and every operation of torch on it comes to `_compute`.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import FrameType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

CUDA = torch.device("cuda", 0)
CPU_GENERATOR = torch.Generator

# Operations whose kernels wait for the device: the shape of the result depends on numbers, or the
# host checks what the kernel reports.
WAITING = {
    "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive",
    "_linalg_eigh", "_linalg_svd", "linalg_eig", "_linalg_check_errors", "multinomial", "bincount",
    "_cholesky_solve_helper",
}  # fmt: skip
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
MAKERS = {torch.tensor, torch.as_tensor}  # from numbers of the host


class Wait(NamedTuple):
    """Where the host waited for the device."""

    what: str  # the operation
    place: str  # the function of nws that did


class Device:
    """What the simulated device has seen."""

    def __init__(self) -> None:
        self.waits: list[Wait] = []
        self.graph: SimulatedGraph | None = None  # that captures
        self.counts = [0, 0]  # of replays and of graphs

    def wait(self, what: str) -> None:
        """Note that the host waits."""
        self.waits.append(Wait(what, _place()))
        if self.graph is not None:
            raise RuntimeError(f"{what}: operation not permitted when stream is capturing")


class SimulatedGraph:
    """Operations that are captured, not done, and that each replay does on the same tensors."""

    def __init__(self) -> None:
        self._again: list[Callable[[], None]] = []
        self._before: dict[int, tuple[Any, Any]] = {}  # storages, and what was in them

    def register_generator_state(self, generator: torch.Generator) -> None:
        self._generator = generator

    def pool(self) -> None:
        pass

    @contextlib.contextmanager
    def captures(self, pool: None) -> Iterator[None]:
        _DEVICE.graph, state = self, self._generator.get_state()
        _DEVICE.counts[1] += 1
        try:
            yield
        finally:
            _DEVICE.graph = None
            self._generator.set_state(state)
            for storage, content in self._before.values():
                storage.copy_(content)

    def keep(self, tensors: list[Tensor]) -> None:
        """Keep what is in tensors before an operation."""
        for storage in (_inner(each).untyped_storage() for each in tensors):
            if storage.data_ptr() not in self._before:
                self._before[storage.data_ptr()] = storage, storage.clone()

    def add(self, compute: Callable[[], Any], results: Any) -> None:
        """Take in an operation, and the tensors where its results belong."""

        def again() -> None:
            for each, found in zip(_tensors(results), _tensors(compute()), strict=True):
                if found.data_ptr() != each.data_ptr():  # no view
                    _inner(each).copy_(found.view(each.shape))  # squeeze_ may have come after it

        self._again.append(again)

    def replay(self) -> None:
        _DEVICE.counts[0] += 1
        with torch._C._DisableTorchDispatch():
            for each in self._again:
                each()


_DEVICE = Device()


def _place() -> str:
    """The innermost function of nws that is at work."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith("nws."):
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_name


class SimulatedTensor(Tensor):
    """A tensor on the simulated device; `inner` holds its numbers."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> "SimulatedTensor":
        wrapped: Any = Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, layout=inner.layout,
        )  # fmt: skip
        wrapped.inner = inner
        return wrapped

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})

    device = property(lambda self: CUDA)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> Any:
        _DEVICE.wait("tolist")
        return self.inner.tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied: Any = SimulatedTensor(_inner(self.detach()).clone())
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        if self.grad is not None:
            copied.grad = self.grad.clone()
        return memo.setdefault(id(self), copied)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, SimulatedTensor) else value


def _wrap(value: Any) -> Any:
    plain = isinstance(value, Tensor) and not isinstance(value, SimulatedTensor)
    return SimulatedTensor(value) if plain else value


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run one operation on the tensors' numbers, as CUDA would: no mixed devices, waits noted."""
    name = _name(func)
    tensors = _tensors((args, kwargs))
    on_cpu = [each for each in tensors if not isinstance(each, SimulatedTensor)]
    _check_devices(name, args, kwargs, on_cpu)
    if name in ("copy_", "_foreach_copy_") and on_cpu:
        pinned = kwargs.get("non_blocking") or (len(args) > 2 and args[2])
        if not (pinned and all(_is_pinned(each) for each in on_cpu)):
            _DEVICE.wait(f"{name} between devices")
    if name in WAITING or (name in INDEXING and _has_mask_or_upload(args[1])):
        _DEVICE.wait(name)
    if name == "_linalg_eigh" and not torch.isfinite(_inner(args[0])).all():
        status = "CUSOLVER_STATUS_EXECUTION_FAILED, when calling `cusolverDnXsyevd`"
        raise RuntimeError(f"cusolver error: {status}")
    back = {id(_inner(each)): each for each in tensors}
    if _DEVICE.graph is not None:
        _DEVICE.graph.keep(tensors)
    result = func(*_map(_inner, args), **_map(_inner, kwargs))
    turns = torch.Tag.inplace_view in func.tags
    if turns:  # squeeze_ and the like: the wrapper's shape too
        with torch._C._DisableTorchDispatch():
            func(*args, **kwargs)
    if isinstance(result, bool | int | float | complex):
        _DEVICE.wait(name)  # a number came to the host: item, equal
    found = _map(lambda each: back[id(each)] if id(each) in back else _wrap(each), result)
    if _DEVICE.graph is not None and not turns:
        _DEVICE.graph.add(lambda: func(*_map(_inner, args), **_map(_inner, kwargs)), found)
    return found


@cache
def _name(func: Any) -> str:
    return str(func._schema.name.split("::")[1])


def _tensors(values: Any) -> list[Tensor]:
    """The tensors in arguments; torch's own walk through them takes longer than the arithmetic."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return []
    return [tensor for each in values for tensor in _tensors(each)]


def _map(function: Callable[[Any], Any], values: Any) -> Any:
    """The same arguments with a function of each tensor in place of it."""
    if isinstance(values, Tensor):
        return function(values)
    if isinstance(values, dict):
        return {key: _map(function, each) for key, each in values.items()}
    if isinstance(values, list | tuple):
        return type(values)([_map(function, each) for each in values])
    return values


def _has_mask_or_upload(indices: Any) -> bool:
    """Whether a mask says which numbers to take, or an index comes from the host."""
    found = _tensors(indices)
    masks = any(each.dtype in (torch.bool, torch.uint8) for each in found)
    return masks or any(not isinstance(each, SimulatedTensor) and each.dim() for each in found)


def _check_devices(name: str, args: Any, kwargs: Any, on_cpu: list[Tensor]) -> None:
    """Raise as torch does where an operation meets tensors of the CPU."""
    into_cpu = isinstance(args[0] if args else None, Tensor) and args[0] is (on_cpu or [None])[0]
    mixed = [each for each in on_cpu if each.dim() > 0]
    if mixed and name not in {"copy_", "_foreach_copy_", *INDEXING}:
        what = "all tensors to be on the same device, but found at least two devices"
        raise RuntimeError(f"Expected {what}, cuda:0 and cpu! (when checking {name})")
    written = kwargs.get("out")
    in_place = name.endswith("_") and into_cpu and name not in ("copy_", "_foreach_copy_")
    if in_place or (isinstance(written, Tensor) and not isinstance(written, SimulatedTensor)):
        raise RuntimeError(f"{name} of tensors on cuda:0 cannot write to the cpu")


class Surface(TorchFunctionMode):
    """What of torch's Python is no operation on a tensor of the device: makers and moves."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in SURFACE:
            return SURFACE[func](func, args, dict(kwargs or {}))
        if kwargs and ("device" in kwargs or "generator" in kwargs):
            return _make(func, args, dict(kwargs))
        return func(*args, **(kwargs or {}))


def _on_device(values: Any) -> bool:
    return any(isinstance(each, SimulatedTensor) for each in _tensors(values))


def _make(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call a function that takes a device or a generator."""
    here, device = _on_device((args, kwargs)), kwargs.pop("device", None)
    _check_generator(kwargs.get("generator"), device or ("cuda" if here else "cpu"))
    if device is None:
        return func(*args, **kwargs)
    target = torch.device(device).type
    if func in MAKERS and target == "cuda" and not here:
        _DEVICE.wait("upload")
    if not here and target != "cuda":
        return func(*args, device=device, **kwargs)
    made = func(*args, **kwargs)
    if here and target == "cpu":
        _DEVICE.wait("to the cpu")
    found = _map(_wrap if target == "cuda" else _inner, made)
    if _DEVICE.graph is not None and not here:
        _DEVICE.graph.add(lambda: func(*args, **kwargs), found)
    return found


def _check_generator(generator: Any, device: Any) -> None:
    expected = torch.device(device).type
    if generator is not None and generator.device.type != expected:
        found = generator.device.type
        raise RuntimeError(f"Expected a '{expected}' device type for generator but found '{found}'")


def _pin(tensor: Tensor) -> Tensor:
    tensor.pinned = True  # type: ignore[attr-defined]
    return tensor


def _is_pinned(tensor: Tensor) -> bool:
    return getattr(tensor, "pinned", False)


def _move(func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """tensor.to(..) and .cpu()."""
    tensor, *rest = args
    copy = kwargs.pop("copy", False)
    if func is Tensor.cpu:
        device, dtype, non_blocking = torch.device("cpu"), None, False
    elif (rest and isinstance(rest[0], Tensor)) or "other" in kwargs:
        other = rest[0] if rest else kwargs["other"]
        device, dtype, non_blocking = other.device, other.dtype, kwargs.get("non_blocking", False)
    else:
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*rest, **kwargs)
    target = (device or tensor.device).type
    to_cuda, here = target == "cuda", isinstance(tensor, SimulatedTensor)
    dtype = dtype or tensor.dtype
    if to_cuda == here:
        with torch._C.DisableTorchFunction():
            return tensor.to(dtype=dtype, copy=copy)
    if not (non_blocking and _is_pinned(tensor)):
        _DEVICE.wait("upload" if to_cuda else "to the cpu")
    with torch._C.DisableTorchFunction():
        moved = _inner(tensor.detach()).to(dtype, copy=True)
    return _wrap(moved) if to_cuda else moved


# Functions that do not come to `_compute` as an operation, or not with all tensors on the device.
SURFACE: dict[Any, Callable[[Any, Any, dict[str, Any]], Any]] = {
    Tensor.to: _move,
    Tensor.cpu: _move,
    Tensor.pin_memory: lambda func, args, kwargs: _pin(args[0].clone()),
    # `inner` does not come along
    torch._has_compatible_shallow_copy_type: lambda f, args, _: not _on_device(args) and f(*args),
}


class SimulatedGenerator(CPU_GENERATOR):
    """A generator that remembers its device."""

    def __new__(cls, device: Any = "cpu") -> "SimulatedGenerator":
        made = super().__new__(cls)
        made.place = torch.device(device)
        return made

    def __init__(self, device: Any = "cpu") -> None:
        pass

    place: torch.device
    device = property(lambda self: CUDA if self.place.type == "cuda" else self.place)  # type: ignore[assignment]


@contextlib.contextmanager
def simulated_cuda() -> Iterator[Device]:
    """Have a CUDA device for some lines."""
    import torch.optim.optimizer as optimizer

    device = _DEVICE
    device.waits.clear()
    stand_ins: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0,
        "mem_get_info": lambda device=None: (2**34, 2**34),
        "get_device_name": lambda *args: "simulated CUDA device",
        "synchronize": lambda *args: device.wait("synchronize"),
        "is_current_stream_capturing": lambda: device.graph is not None,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, Surface():
        for name, stand_in in stand_ins.items():
            patch.setattr(torch.cuda, name, stand_in)
        patch.setattr(torch, "Generator", SimulatedGenerator)
        patch.setattr(torch.cuda, "CUDAGraph", SimulatedGraph)
        patch.setattr(torch.cuda, "graph", SimulatedGraph.captures)
        patch.setattr(torch.distributed, "is_nccl_available", lambda: False)  # gloo for all
        known = [*optimizer._foreach_supported_types, SimulatedTensor]
        patch.setattr(optimizer, "_foreach_supported_types", known)
        yield device


# --- as a plugin of pytest ------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cuda: on CUDA, or on the simulated device; others on a CPU")


@pytest.fixture(autouse=True)
def _device_of_the_test(request: pytest.FixtureRequest) -> Iterator[None]:
    if not request.node.get_closest_marker("cuda"):
        with pytest.MonkeyPatch.context() as patch:  # on a CPU, also what the test starts
            patch.setattr(torch.cuda, "is_available", lambda: False)
            patch.setenv("CUDA_VISIBLE_DEVICES", "")
            yield
        return
    with contextlib.nullcontext() if torch.cuda.is_available() else simulated_cuda():
        yield
