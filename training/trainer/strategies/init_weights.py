"""Initial weights: created directly, or with `meta_init` recorded without memory and created tensor by
tensor.

With `meta_init` the model is built on the meta device while every operation on its tensors is recorded. A
tensor
is created by replaying its operations on the CPU with a generator seeded from the seed and the tensor's name,
so
it is equal with every strategy, world size and device. Weights that the constructor reads from a file cannot
be recorded; a model of `StoredWeights` says where each one is, and it is read in its turn. With `auto`, other
models, and those that cannot be built in this way, are created directly.
A resumed run creates nothing that its checkpoint has: those tensors are zeros until it is loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads.stored_weights import Reads, StoredWeights

_SILENT = ("_no_grad_trunc_normal_", "dirac_", "orthogonal_", "sparse_")
_FIX = "sharding.meta_init=false"
_SUMMARY = "the model does not support meta_init"


class Built:
    """A model whose weights may still be on the meta device; `materialise` creates those of a part."""

    def __init__(
        self,
        model: nn.Module,
        seed: int,
        record: _Record | None,
        *,
        resumes: bool = False,
        stored: Reads | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.model, self.notes = model, notes
        self._stored = stored or {}
        overwritten = _in_every_checkpoint(model) if record is not None and resumes else {}
        self.not_drawn = frozenset(overwritten)
        """Names of the tensors that are zeros, for a checkpoint to overwrite."""
        self._zeros = {id(tensor) for tensor in overwritten.values()}
        self._seed, self._record = seed, record
        self._names: dict[int, str] = {}
        for name, tensor in _named(model) if record else ():
            self._names.setdefault(id(tensor), name)
        self._made: dict[int, weakref.ref[torch.Tensor]] = {}
        """By the id of the meta tensor, which `_alive` keeps alive. A shared tensor is created once, and
        freed when
        it is sharded.
        """
        self._alive: list[torch.Tensor] = []

    def materialise(self, part: nn.Module | None = None) -> nn.Module:
        """Create the weights of `part` (default: the model) that are still on the meta device."""
        part = self.model if part is None else part
        if self._record is None:
            return part
        for module in part.modules():
            for owner, name, tensor in _owned(module):
                if tensor.is_meta:
                    owner[name] = self._real(tensor)
        return part

    def materialise_drawn(self) -> None:
        """Create the tensors that are not read from files. Some may prove impossible to create."""
        for module in self.model.modules():
            for owner, name, tensor in _owned(module):
                if tensor.is_meta and self._names[id(tensor)] not in self._stored:
                    owner[name] = self._real(tensor)

    def _real(self, tensor: torch.Tensor) -> torch.Tensor:
        known = self._made.get(id(tensor), lambda: None)()
        if known is not None:
            return known
        assert self._record is not None
        if id(tensor) in self._zeros:
            real = torch.zeros(tensor.shape, dtype=tensor.dtype)
        elif read := self._stored.get(self._names[id(tensor)]):
            real = read().to(tensor.dtype, copy=True)  # not a view of a file
        else:
            name = self._names[id(tensor)]
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.default_generator.manual_seed(_seed(self._seed, name))
                real = self._record.replay(name, tensor)
        if isinstance(tensor, nn.Parameter):
            real = nn.Parameter(real, requires_grad=tensor.requires_grad)
        self._made[id(tensor)] = weakref.ref(real)
        self._alive.append(tensor)
        return real


def build(
    make: Callable[[], nn.Module], seed: int, meta: bool | Literal["auto"], *, resumes: bool = False
) -> Built:
    """Call `make` with seeded generators, on the CPU or on the meta device. With `resumes`, a model on the
    meta device gets zeros in place of the initial values that every checkpoint has.

    Raises:
        InputError: the model reads its weights, or loads them, while it is built on the meta device.
    """
    notes: tuple[str, ...] = ()
    if meta == "auto":
        try:
            built = _built_late(make, seed, resumes)
            if isinstance(built.model, StoredWeights):
                built.materialise_drawn()
                return built
        except Exception as error:  # noqa: BLE001 - of any architecture; what is wrong with the recipe is raised again
            why = error.problems[0].what if isinstance(error, InputError) and error.problems else str(error)
            first = (why.splitlines() or [type(error).__name__])[0][:200]
            notes = (f"each worker reads the whole pretrained model into its memory: {first}",)
    if meta is True:
        return _built_late(make, seed, resumes)
    torch.manual_seed(seed)
    return Built(make(), seed, None, notes=notes)


def _built_late(make: Callable[[], nn.Module], seed: int, resumes: bool) -> Built:
    torch.manual_seed(seed)
    record = _Record()
    try:
        with torch.device("meta"), record, _Constants(), _initialisers(record):
            model = make()
    except (RuntimeError, NotImplementedError) as error:
        what = f"the model cannot be built on the meta device: {str(error).splitlines()[0]}"
        raise InputError(_SUMMARY, [Problem("sharding.meta_init", what, _FIX)]) from error
    stored = model.stored() if isinstance(model, StoredWeights) else {}
    unknown = [name for name, tensor in _named(model) if name not in stored and not record.knows(tensor)]
    if unknown:
        tensors = f"{', '.join(unknown[:3])} {'is' if len(unknown) == 1 else 'are'}"
        what = f"{tensors} not created by operations that can be replayed"
        raise InputError(_SUMMARY, [Problem("sharding.meta_init", what, _FIX)])
    return Built(model, seed, record, resumes=resumes, stored=stored)


class _Record(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch is partly typed
    """Every operation on meta tensors, in order, with the storages that it reads, and those that
    it writes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch is partly typed
        self._operations: list[
            tuple[Any, tuple[Any, ...], dict[str, Any], Any, frozenset[int], frozenset[int]]
        ] = []
        self._made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        reads, writes = frozenset(_storages((args, kwargs))), frozenset(_storages(out))
        if writes:
            self._operations.append((func, args, kwargs, out, reads, writes))
            self._made |= writes - reads
        return out

    def note(self, func: Callable[..., torch.Tensor], tensor: torch.Tensor, args: Any, kwargs: Any) -> None:
        """Record a change to `tensor` that the dispatcher does not see."""
        place = frozenset([_storage(tensor)])
        self._operations.append((func, (tensor, *args), kwargs, tensor, place, place))

    def knows(self, tensor: torch.Tensor) -> bool:
        return not tensor.is_meta or _storage(tensor) in self._made

    def replay(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The value of `tensor`, by replaying only the operations that lead to it."""
        real: dict[int, torch.UntypedStorage] = {}

        def on_cpu(each: torch.Tensor) -> torch.Tensor:
            if not each.is_meta:
                return each
            return torch.empty(0, dtype=each.dtype).set_(
                real[_storage(each)], each.storage_offset(), each.shape, each.stride()
            )

        for func, args, kwargs, out, _, _ in self._leading_to(_storage(tensor)):
            moved = {**kwargs, "device": torch.device("cpu")} if kwargs.get("device") is not None else kwargs
            result = func(
                *tree_map_only(torch.Tensor, on_cpu, args), **tree_map_only(torch.Tensor, on_cpu, moved)
            )
            for meta, made in zip(_tensors(out), _tensors(result), strict=True):
                real.setdefault(_storage(meta), made.untyped_storage())
        value = on_cpu(tensor)
        if value.shape != tensor.shape:
            raise InputError(
                _SUMMARY,
                [Problem("sharding.meta_init", f"{name} cannot be created", _FIX)],
            )
        return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value

    def _leading_to(self, storage: int) -> list[Any]:
        needed, steps = {storage}, []
        for step in reversed(self._operations):
            *_, reads, writes = step
            if writes & needed:
                needed |= reads
                steps.append(step)
        return steps[::-1]


@contextlib.contextmanager
def _initialisers(record: _Record) -> Iterator[None]:
    """Record the functions of `torch.nn.init` that do nothing on the meta device. Does not see functions that
    the
    model imported by name.
    """

    def recorded(func: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if tensor.is_meta:
                record.note(func, tensor, args, kwargs)
            return func(tensor, *args, **kwargs)

        return call

    real = {name: getattr(nn.init, name) for name in _SILENT if hasattr(nn.init, name)}
    for name, func in real.items():
        setattr(nn.init, name, recorded(func))
    try:
        yield
    finally:
        for name, func in real.items():
            setattr(nn.init, name, func)


class _Constants(TorchFunctionMode):
    """Tensors created from Python numbers: the meta device would drop the values, so they are copied by a
    recorded operation.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in (torch.tensor, torch.as_tensor) or kwargs.get("device") is not None or _tensors(args):
            return func(*args, **kwargs)
        real = func(*args, **{**kwargs, "device": "cpu"})
        return torch.empty_like(real, device="meta").copy_(real)


def _named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                yield f"{name}.{key}".lstrip("."), value


def _owned(module: nn.Module) -> list[tuple[dict[str, Any], str, torch.Tensor]]:
    """A module's own tensors, each with the dictionary that has it: some models keep one as an attribute."""
    owners: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
    return [
        (owner, name, value)
        for owner in owners
        for name, value in owner.items()
        if isinstance(value, torch.Tensor)
    ]


def _in_every_checkpoint(model: nn.Module) -> dict[str, torch.Tensor]:
    """Tensors on the meta device by name, without untrained weights, which a checkpoint may lack."""
    saved = model.state_dict(keep_vars=True)
    return {
        name: tensor
        for name, tensor in saved.items()
        if isinstance(tensor, torch.Tensor)
        and tensor.is_meta
        and (tensor.requires_grad or not isinstance(tensor, nn.Parameter))
    }


def _tensors(value: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]


def _storages(value: Any) -> Iterator[int]:
    return (_storage(each) for each in _tensors(value) if each.is_meta)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _seed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:7])
