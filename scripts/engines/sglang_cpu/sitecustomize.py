"""Let SGLang start on a CPU: stubs for three GPU packages that it imports but does not use there.

Put this folder on PYTHONPATH; processes that SGLang spawns inherit it. For tests only: SGLang does
not support this configuration, so its version is pinned.
"""

import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

GPU_PACKAGES = ("triton", "torchvision", "sgl_kernel")


class _StubType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Stub()


class _Stub(metaclass=_StubType):
    """Stub of a function, decorator, constant or object of a GPU package."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *args: Any, **options: Any) -> Any:
        is_decorator = len(args) == 1 and callable(args[0]) and not options
        return args[0] if is_decorator else _Stub()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "driver":  # triton reports a missing GPU as "no driver"
            raise AttributeError(name)
        return _Stub()

    def __getitem__(self, _: Any) -> Any:
        return _Stub()

    def __or__(self, _: Any) -> Any:
        return _Stub()

    __ror__ = __or__

    def __iter__(self) -> Any:
        return iter(())


class _StubModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "driver":
            raise AttributeError(name)
        value = _StubType(name, (_Stub,), {}) if name[0].isupper() else _Stub()
        setattr(self, name, value)
        return value


class _StubFinder:
    """Import finder for packages that are not installed."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _StubModule(spec.name)
        module.__path__ = []
        module.__version__ = "0.0.0"  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.append(
    _StubFinder(frozenset(n for n in GPU_PACKAGES if importlib.util.find_spec(n) is None))
)
