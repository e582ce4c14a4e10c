"""Triton's interpreter, without what it does over and over: what remains is a quarter of its time.

It replaces what is in ``triton.language`` while a kernel runs, and looks through all of it for what is to be replaced:
at a launch, and again whenever one function of a kernel calls another, when nothing is left to replace. Here it looks
once a launch. It makes the type of every intermediate result anew, down to the number of its entries. Here each type is
made once. The operations on numbers are the interpreter's own, one by one, with all their checks.

And it looks at no address: a kernel that reads or writes beyond its arguments gives the right answer as long as memory
is kind. Here such an access is an error.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

_NEEDED = ("_LangPatchScope", "_patch_lang", "_get_np_dtype", "interpreter_semantic")
_GUARDED = ("GridExecutor", "InterpreterBuilder")


def quicken_interpreter() -> None:
    """Nothing is changed in a version of Triton whose interpreter works in another way."""
    try:
        from triton import language as tl
        from triton.runtime import interpreter
    except ImportError:  # Triton is made for Linux only
        return
    if all(hasattr(interpreter, name) for name in _NEEDED + _GUARDED):
        interpreter._patch_lang = _once_a_launch(interpreter._patch_lang, interpreter._LangPatchScope, (tl, tl.core))
        interpreter._get_np_dtype = _by_name(interpreter._get_np_dtype)
        semantic = interpreter.interpreter_semantic
        semantic.broadcast_impl_value = _where_shapes_differ(semantic.broadcast_impl_value)
        tl.block_type.__init__ = _block_type_init(tl)
        tl.tensor.__init__ = _tensor_init(tl)
        _guard(interpreter)


def _once_a_launch(replace: Callable[[Any], Any], nothing: Callable[[], Any], modules: tuple[Any, ...]) -> Any:
    replaced: set[str] = set()  # names of modules, since the launch

    @functools.cache
    def seen_by(fn: Any) -> frozenset[str]:
        return frozenset(m.__name__ for m in fn.__globals__.values() if inspect.ismodule(m) and m in modules)

    def replace_once(fn: Any) -> Any:
        if replaced and seen_by(fn) <= replaced:
            return nothing()
        scope = replace(fn)
        replaced.update(seen_by(fn))
        restore = scope.restore

        def restore_and_forget() -> None:  # called at the end of a launch, and only there
            replaced.clear()
            restore()

        scope.restore = restore_and_forget
        return scope

    return replace_once


def _by_name(dtype_of: Callable[[Any], Any]) -> Any:
    known: dict[str, Any] = {}

    def remembered(triton_type: Any) -> Any:
        name = triton_type.name
        if name not in known:
            known[name] = dtype_of(triton_type)
        return known[name]

    return remembered


def _where_shapes_differ(broadcast: Callable[[Any, Any], Any]) -> Any:
    def shortcut(lhs: Any, rhs: Any) -> Any:
        if lhs.type.is_block() and rhs.type.is_block() and lhs.type.shape.values == rhs.type.shape.values:
            return lhs, rhs
        return broadcast(lhs, rhs)

    return shortcut


def _block_type_init(tl: Any) -> Any:
    make, known = tl.block_type.__init__, {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        key = (type(shape), element_ty.name, *(s.value if isinstance(s, tl.constexpr) else s for s in shape))
        if key not in known:
            make(self, element_ty, shape)
            known[key] = vars(self).copy()
        else:
            vars(self).update(known[key], element_ty=element_ty)  # pointers of one name may be several types

    return init


def _tensor_init(tl: Any) -> Any:
    """All but the handle goes by the type."""
    make, known = tl.tensor.__init__, {}

    def init(self: Any, handle: Any, type: Any) -> None:  # noqa: A002  # a keyword of Triton's
        name = type.name
        if name not in known:
            make(self, handle, type)
            known[name] = vars(self).copy()
        else:
            vars(self).update(known[name], handle=handle, type=type, dtype=type.scalar)

    return init


def _guard(interpreter: Any) -> None:
    """Every address must lie in the memory of an argument of the launch."""
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    prepare, load, store = executor._init_args_hst, builder.create_masked_load, builder.create_masked_store
    change = builder.create_atomic_rmw
    starts, ends = np.zeros(1, np.uint64), np.zeros(1, np.uint64)

    def prepared(self: Any, args: Any, options: Any) -> Any:
        nonlocal starts, ends
        args, options = prepare(self, args, options)
        storages = [arg.untyped_storage() for arg in (*args, *options.values()) if hasattr(arg, "untyped_storage")]
        ranges = sorted({(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages})
        starts, ends = np.array([(0, 0), *ranges], np.uint64).T
        return args, options

    def look(ptrs: Any, mask: Any) -> None:
        at, on = np.broadcast_arrays(ptrs.data, mask.data)
        at = at[on.astype(bool)].view(np.uint64)
        if at.size:
            size = np.uint64(max(ptrs.get_element_ty().primitive_bitwidth // 8, 1))
            of = np.searchsorted(starts, at, side="right") - 1
            beyond = at + size > ends[of]
            assert not beyond.any(), f"{beyond.sum()} of {at.size} addresses are not those of an argument"

    def guarded(access: Callable[..., Any], pointers: int, masks: int) -> Callable[..., Any]:
        def looked_at(self: Any, *args: Any) -> Any:
            look(args[pointers], args[masks])
            return access(self, *args)

        return looked_at

    executor._init_args_hst = prepared
    builder.create_masked_load, builder.create_masked_store = guarded(load, 0, 1), guarded(store, 0, 2)
    builder.create_atomic_rmw = guarded(change, 1, 3)
