"""Registries that map names to classes: one for tasks and one for models. Listing the names imports no class.

A built-in class is found by the decorator ``@registry.register(NAME)`` in its file, which is read as text; the file is
imported when the class is first needed. Other packages add classes through entry points (``lrtasks.tasks``,
``lrtasks.models``). A user's own class needs no registration: its address, ``FILE.py:NAME`` or ``package.module:NAME``,
serves as its name.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import secrets
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from importlib import metadata, resources
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from lrtasks.config import Config
from lrtasks.errors import UsageError, in_one_line, suggestion, unknown, with_line

T = TypeVar("T", bound=Config)

_NAME = re.compile(r"\w[\w.-]{0,99}")
_REGISTERED = re.compile(r'^@registry\.register\("(.+)"\)\n(?:@.*\n)*class (\w+)', re.MULTILINE)
"""Name and class in the source of a file that registers a built-in class."""


class Registry(Generic[T]):
    """Named classes of one kind.

    Args:
        kind: the word used in messages, ``"task"`` or ``"model"``. Other packages add classes through the entry-point
            group ``lrtasks.tasks`` or ``lrtasks.models``.
        base: ``"module:Class"``, the base class of every entry; imported together with the first entry.
        package: dotted name of the package whose files register the built-in classes.
        lists: names that stand for several names in :meth:`select`.
    """

    def __init__(self, kind: str, base: str, package: str, lists: Mapping[str, Sequence[str]] | None = None) -> None:
        self.kind, self._base, self._package, self._lists = kind, base, package, lists or {}
        self._classes: dict[str, type[T]] = {}

    @property
    def allowed(self) -> str:
        """The allowed names, in words, for the message on an unknown name; there are too many names to list."""
        return f"FILE.py:NAME, or a name that lrtasks list {self.kind}s prints"

    @functools.cached_property
    def _built_in(self) -> dict[str, str]:
        """The address ``module:Class`` of each built-in class by name."""
        files = [file for file in resources.files(self._package).iterdir() if file.name.endswith(".py")]
        return {
            name: f"{self._package}.{file.name.removesuffix('.py')}:{attribute}"
            for file in files
            for name, attribute in _REGISTERED.findall(file.read_text(encoding="utf-8"))
        }

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Return a class decorator that registers the class as ``name``.

        Raises:
            UsageError: if another class has this name, if the class is not of this kind, or if the name cannot be used
                as a folder name.
        """

        def add(cls: type[T]) -> type[T]:
            for problem in misnamed(name, self.kind):
                raise UsageError(problem)
            self._require_kind(cls, f"{self.kind} {name!r}")
            address = f"{cls.__module__}:{cls.__qualname__}"
            owner = self._classes.get(name)
            taken = self._built_in.get(name) or (f"{owner.__module__}:{owner.__qualname__}" if owner else address)
            if taken != address:
                raise UsageError(f"two {self.kind}s are called {name!r}: {taken} and {address}")
            cls.name = name  # type: ignore[attr-defined]
            self._classes[name] = cls
            return cls

        return add

    def names(self) -> list[str]:
        """Return all names, sorted: built-in classes, entry points and classes that code has registered."""
        return sorted({*self._built_in, *self._entry_points(), *self._classes})

    def built_in(self) -> list[str]:
        """Return the sorted names of the classes of this package."""
        return sorted(self._built_in)

    def select(self, chosen: str | Sequence[str]) -> list[str]:
        """Return the chosen names; ``chosen`` is a list or a comma-separated text.

        Addresses of a user's own classes (``FILE.py:NAME``) and names with a preset (``NAME@PRESET``) stay unchanged.
        ``all`` is replaced by all names, and the name of a list by the list's entries.

        Raises:
            UsageError: for an unknown name, or an empty list.
        """
        known = self.names()
        lists = {"all": known, **self._lists}
        words = [word.strip() for word in chosen.split(",")] if isinstance(chosen, str) else list(chosen)
        names = [name for word in words for name in lists.get(word, [word])]
        for name in names:
            if ":" not in name and split_preset(name)[0] not in known:
                raise unknown(self.kind, name, [*lists, *known], ", ".join([*lists, self.allowed]))
        if not names:
            raise UsageError(f"no {self.kind} is chosen. Allowed: {', '.join([*lists, self.allowed])}")
        return names

    def owns(self, name: str) -> bool:
        """Return whether ``name`` is a name of this registry, or the address of a class of this kind.

        Raises:
            UsageError: if there is nothing at the address.
        """
        if ":" not in name:
            return name in self.names()
        return self._is_kind(load_object(name, "task or model"))

    def problems(self) -> dict[str, str]:
        """Import the classes of other packages, and return one line for each name that cannot be used."""
        found = {}
        for name in sorted(self._entry_points()):
            try:
                self.get(name)
            except UsageError as error:
                found[name] = str(error)
        return found

    def usable(self) -> list[str]:
        """Return the sorted names for which :meth:`problems` reports no problem."""
        problems = self.problems()
        return [name for name in self.names() if name not in problems]

    def summary(self, name: str) -> str:
        """Return the first paragraph of a class's docstring, without importing a built-in class."""
        if name in self._built_in and name not in self._classes:
            module, _, attribute = self._built_in[name].partition(":")
            package, _, stem = module.rpartition(".")
            tree = ast.parse((resources.files(package) / f"{stem}.py").read_text(encoding="utf-8"))
            found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == attribute)
            doc = ast.get_docstring(found)
        else:
            doc = inspect.getdoc(self.get(name))
        return " ".join((doc or "").split("\n\n")[0].replace("``", "").split())

    def get(self, name: str) -> type[T]:
        """Return the class called ``name``; import it if necessary.

        Raises:
            UsageError: for an unknown name (similar names are suggested), for a name that two packages use, or if the
                package that adds the name cannot be imported or does not name a class of this kind.
        """
        if not isinstance(name, str):
            raise UsageError(f"the name of a {self.kind} must be a string, found {name!r}")
        if ":" in name:
            return self._checked(load_object(name, self.kind), f"{self.kind} {name!r}")
        points = self._entry_points().get(name, [])
        built_in = self._built_in.get(name)
        origins = [*([built_in] if built_in else []), *(_origin(point) for point in points)]
        if len(origins) > 1:
            two = f"two {self.kind}s are called {name!r}: {' and '.join(origins)}"
            raise UsageError(f"{two}; rename one of them or uninstall it")
        if name not in self._classes:
            if built_in:
                importlib.import_module(built_in.partition(":")[0])
            elif points:
                self._load(name, points[0])
            else:
                raise unknown(self.kind, name, self.names(), self.allowed)
        return self._classes[name]

    def _checked(self, cls: type[T], where: str) -> type[T]:
        """Return the user's or another package's class if it is of this kind and well formed; name it if necessary."""
        self._require_kind(cls, where)
        if "name" not in vars(cls):
            cls.name = cls.__name__  # type: ignore[attr-defined]
        for problem in malformed(cls):
            raise UsageError(f"{where}: {problem}")
        return cls

    def _is_kind(self, cls: object) -> bool:
        module, _, attribute = self._base.partition(":")
        return isinstance(cls, type) and issubclass(cls, getattr(importlib.import_module(module), attribute))

    def _require_kind(self, cls: object, where: str) -> None:
        if not self._is_kind(cls):
            raise UsageError(f"{where} must be a subclass of {self._base.replace(':', '.')}, found {cls!r}")

    @functools.cache  # noqa: B019 - a registry lives as long as the process
    def _entry_points(self) -> dict[str, list[metadata.EntryPoint]]:
        points = metadata.entry_points(group=f"lrtasks.{self.kind}s")
        return {name: [point for point in points if point.name == name] for name in points.names}

    def _load(self, name: str, point: metadata.EntryPoint) -> None:
        where = f"{self.kind} {name!r} from {_origin(point)}"
        try:
            # standard output is reserved for the output of the command
            with contextlib.redirect_stdout(sys.stderr):
                cls = point.load()
        except (Exception, SystemExit) as error:
            raise UsageError(f"{where} cannot be imported: {in_one_line(error)}") from error
        own = getattr(cls, "__dict__", {}).get("name", name)
        self._checked(cls, where)
        if own != name:
            raise UsageError(f"entry point {name!r} = {point.value} names a class called {own!r}; give both one name")
        self.register(name)(cls)


def split_preset(text: str) -> tuple[str, str]:
    """Return name and preset of ``NAME@PRESET``; the preset is empty if there is none.

    >>> split_preset("word-problem@a5"), split_preset("shift")
    (('word-problem', 'a5'), ('shift', ''))

    In an address, an ``@`` before the colon belongs to the path:

    >>> split_preset("me@home/waves.py:Wave@long")
    ('me@home/waves.py:Wave', 'long')

    Raises:
        UsageError: if there is an ``@`` and no preset.
    """
    place, colon, rest = text.rpartition(":")
    name, at, preset = rest.partition("@")
    if at and not preset:  # such as the value of a shell variable that is not set; the defaults may be far larger
        raise UsageError(f"{text!r} names no preset after the @; give one or leave out the @")
    return place + colon + name, preset


_refuses_addresses = ContextVar("refuses_addresses", default=False)


@contextlib.contextmanager
def registered_only() -> Iterator[None]:
    """Let :func:`load_object` refuse every address in the ``with`` block, for names from a record of someone else."""
    token = _refuses_addresses.set(True)
    try:
        yield
    finally:
        _refuses_addresses.reset(token)


def load_object(address: str, kind: str) -> Any:
    """Import the object at ``FILE.py:NAME`` or ``package.module:NAME``; search modules in the current folder, too.

    Raises:
        UsageError: if the file, module or name does not exist, if the import raises an exception, or in a block of
            :func:`registered_only`.
    """
    place, _, name = address.rpartition(":")
    where = f"{kind} {address!r}"
    if _refuses_addresses.get():
        raise UsageError(f"{where} is an address; code that a record names is not imported here")
    if not place or not name:
        raise UsageError(f"{where}: write FILE.py:NAME or package.module:NAME")
    try:
        with contextlib.redirect_stdout(sys.stderr), _importing_from(Path.cwd()):
            module = module_of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"{where}: there is no file {error.filename}") from None
    except (Exception, SystemExit) as error:
        relative = isinstance(error, ImportError) and "relative import" in str(error) and place.endswith(".py")
        hint = "; write package.module:NAME for a file that imports from its package" if relative else ""
        raise UsageError(f"{where}: {place} cannot be imported: {with_line(error)}{hint}") from error
    if not hasattr(module, name):
        raise UsageError(f"{where}: {place} has no {name!r}{suggestion(name, dir(module))}")
    found = getattr(module, name)
    digest = source_digest(found)  # noted now, since the file may be edited before the first run
    if place.endswith(".py") and digest is not None and (inspect.isclass(found) or inspect.isfunction(found)):
        _NOTED.setdefault(found, digest)
    return found


_NOTED: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""Digests of the classes and functions that :func:`load_object` found in files, from the first time.

The modules that such an object uses may be imported again after an edit; the object keeps the earlier ones.
"""

_CONTENTS: dict[tuple[int, Path], tuple[Any, bytes]] = {}
"""Contents of source files by file and by id of the import; the import is kept, so that its id stays unique."""


def source_digest(target: Any) -> str | None:
    """Return :func:`file_digest` of a class's or function's file, or ``None`` without a file (defined in a shell).

    The file of a ``functools.partial`` is that of its class or function. If a file is edited after the first call, the
    digest stays the same until the file is imported again, since Python still runs the earlier code.
    """
    while isinstance(target, functools.partial):
        target = target.func
    if (inspect.isclass(target) or inspect.isfunction(target)) and target in _NOTED:
        return _NOTED[target]
    target = inspect.unwrap(target)
    try:
        own = Path(inspect.getsourcefile(target) or "").absolute()
        return _digest_as_imported(own, sys.modules.get(getattr(target, "__module__", "")))
    except (TypeError, OSError):
        return None


def _digest_as_imported(own: Path, module: ModuleType | None) -> str:
    """Return :func:`file_digest` of the file ``own`` of ``module``, from the contents that files had at first."""
    owners: dict[str, Any] = {file: sys.modules[name] for name, file in _imported_modules()}
    owners[str(own)] = module

    def as_imported(file: Path) -> bytes:
        content = file.read_bytes()
        owner = owners.get(str(file))
        imported = getattr(owner, "__spec__", None) or owner  # each import of a module makes another spec
        return content if imported is None else _CONTENTS.setdefault((id(imported), file), (imported, content))[1]

    return file_digest(own, as_imported)


def address_digest(address: str) -> str:
    """Return the digest of the file that an address names; :func:`load_object` has imported it.

    As in :func:`source_digest`, the digest is of the content that Python runs, not of a later edit.
    """
    place = address.rpartition(":")[0]
    if place.endswith(".py"):  # imported again after each edit
        return file_digest(Path(place).resolve())
    module = sys.modules[place]
    return _digest_as_imported(Path(module.__file__ or "").absolute(), module)


def has_own_name(target: Any) -> bool:
    """Return whether the qualified name of a class or function leads back to it, and therefore identifies it.

    The result is false for an anonymous or inner function, a ``functools.partial`` and an object of a class.
    """
    found: Any = sys.modules.get(getattr(target, "__module__", ""))
    for part in getattr(target, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return found is target


def file_digest(path: Path, read: Callable[[Path], bytes] = Path.read_bytes) -> str:
    """Return the digest of a source file, which a run's record holds.

    If the file imports other files of its folder or package, directly or through each other, their names and contents
    are part of the digest. ``read`` returns the content of a file.
    """
    path = path.absolute()
    contents = _with_imported(path, read)
    digest = hashlib.blake2b(contents.pop(path), digest_size=16)
    for name, content in sorted((os.path.relpath(file, path.parent), content) for file, content in contents.items()):
        digest.update(f"\n{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _with_imported(path: Path, read: Callable[[Path], bytes] = Path.read_bytes) -> dict[Path, bytes]:
    """Return the contents of a source file and of the files of its folder or package that it imports."""
    contents, waiting = {path: read(path)}, [path]
    while waiting:
        file = waiting.pop()
        for level, words in _imports(contents[file]):
            for place in _places(path, file, level, words):
                if place not in contents:
                    contents[place] = read(place)
                    waiting.append(place)
    return contents


@functools.cache
def _imports(content: bytes) -> list[tuple[int, tuple[str, ...]]]:
    """Return the level (number of leading dots) and the words of each name that a file imports."""
    found = set[tuple[int, str]]()
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.Import):
                found |= {(0, alias.name) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {(node.level, ".".join(filter(None, (node.module, alias.name)))) for alias in node.names}
    return [(level, tuple(name.split("."))) for level, name in sorted(found)]


def _places(path: Path, file: Path, level: int, words: Sequence[str]) -> list[Path]:
    """Return the files in the folder or package of ``path`` that an import of ``words`` by ``file`` executes.

    This package and other installed packages are left out. If ``path`` itself is in an installed package, only the
    files of its own folder count: such packages are large and seldom edited.
    """
    folder, installed = path.parent, not _INSTALLED.isdisjoint(path.parts)
    if level:
        bases = list(file.parents[level - 1 : level])
    elif words[0] == "lrtasks":
        bases = []
    else:
        bases = [] if folder.name in _INSTALLED else [folder]
        bases += [package.parent for package in path.parents if package.name == words[0]]
    for base in bases:
        places = [base / "__init__.py"] if level else []
        for end in range(1, len(words) + 1):  # the last word is a module, or a name in the module before it
            place = base.joinpath(*words[:end])
            places += [place.with_name(f"{place.name}.py"), place / "__init__.py"]
        if found := [place for place in places if os.path.isfile(place)]:  # noqa: PTH113 - false without permission
            return [place for place in found if not installed or place.parent == folder]
    return []


_INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Names of the folders of installed packages."""


def _imported_modules() -> Iterator[tuple[str, str]]:
    """Yield names and files of the modules that import statements made."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and name not in {"__main__", *_FILES}:
            yield name, file


def is_own(cls: type) -> bool:
    """Return whether a class belongs to the user or another package, not to this package."""
    return cls.__module__.split(".")[0] != "lrtasks"


def file_source(cls: type) -> str | None:
    """Return the digest of a class's source file; ``None`` for a class of this package or without a file."""
    return source_digest(cls) if is_own(cls) else None


def own_source(cls: type) -> str | None:
    """Return :func:`file_source`, or a random string if a class of the user's has no file (defined in a notebook).

    The string belongs to the class object: a class that is defined again counts as another one.
    """
    if not is_own(cls):
        return None
    return file_source(cls) or _WITHOUT_FILE.setdefault(cls, f"object {secrets.token_hex(8)}")


_WITHOUT_FILE: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()
"""Random strings that stand for the source of classes without a file."""


@contextlib.contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Let imports find the modules of a folder before all others, as ``python script.py`` does."""
    place = str(folder)
    if sys.path[:1] == [place]:
        yield
        return
    sys.path.insert(0, place)
    try:
        yield
    finally:
        sys.path.remove(place)


_FILES: dict[str, Path] = {}
"""Files that :func:`module_of_file` imported, by the module's name."""


def file_of(cls: type) -> Path | None:
    """Return the user's file that a class was loaded from, or ``None`` if the class can be imported by name."""
    return _FILES.get(cls.__module__)


def module_of_file(file: Path) -> ModuleType:
    """Import a file as a module whose name depends on stem, path and :func:`file_digest`; import each only once.

    After an edit, the files of its folder or package that it imports are imported again, too.
    """
    file = file.resolve()
    digest = hashlib.blake2b(f"{file} {file_digest(file)}".encode(), digest_size=6).hexdigest()
    name = f"{file.stem}_{digest}"
    again = file in _FILES.values()
    _FILES[name] = file
    if name not in sys.modules:
        if again:
            _forget_modules(_with_imported(file))
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            _forget_namesakes(file)
            with _importing_from(file.parent):  # so that the file can import other files of its folder
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _forget_modules(files: Collection[Path]) -> None:
    """Let the next import of each of some files execute it again."""
    paths = {str(file) for file in files}
    for name in [name for name, file in _imported_modules() if file in paths]:
        del sys.modules[name]
        package, _, word = name.rpartition(".")
        if package in sys.modules:  # "from package import module" takes the attribute, if there is one
            vars(sys.modules[package]).pop(word, None)


def _forget_namesakes(file: Path) -> None:
    """Let ``file`` import modules of its own folder that have the names of modules from other folders.

    Existing objects keep the other modules.
    """
    folder = file.parent
    inside = (own.relative_to(folder).parts[0] for own in _with_imported(file) if own.is_relative_to(folder))
    names = {part.removesuffix(".py") for part in inside} - {file.stem} - sys.stdlib_module_names
    others = set[str]()
    for name, loaded in _imported_modules():
        root, place = name.partition(".")[0], Path(loaded)
        if root in names and not place.is_relative_to(folder) and not _INSTALLED & set(place.parts):
            others.add(root)
    for name in [name for name in sys.modules if name.partition(".")[0] in others]:
        del sys.modules[name]


def _undeclared(cls: type[Config]) -> Iterator[str]:
    """Yield the names of attributes that look like parameters, but have no effect without ``@dataclass`` and a type.

    Such an attribute is not a parameter, or does not change the default of an inherited parameter.
    """
    fields, seen = {field.name for field in dataclasses.fields(cls)}, set[str]()
    for base in (base for base in cls.__mro__ if issubclass(base, Config)):
        hints, decorated = inspect.get_annotations(base), "__dataclass_fields__" in vars(base)
        typed = {name for name, hint in hints.items() if "ClassVar" not in str(hint)}
        for name, value in vars(base).items():
            meant = name in fields or name in typed or isinstance(value, dataclasses.Field)
            if meant and name not in seen and not (decorated and name in typed):
                yield name
            seen.add(name)


def misnamed(name: object, kind: str) -> Iterator[str]:
    """Yield a message if the name of a class of this kind cannot be a folder name and the value of an option."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == "all":
        rule = "use letters, digits, '_', '-' and '.', do not begin with '-' or '.', and do not use 'all'"
        yield f"{name!r} cannot be the name of a {kind}: {rule}"


def _exchanged(cls: type[Config]) -> Iterator[str]:
    """Yield a message for each method that replaces an inherited property, and for the reverse.

    A parameter that has the name of a method replaces the method, too.
    """
    for name in (name for name in dir(cls) if not name.startswith("__")):
        first = next(vars(base)[name] for base in reversed(cls.__mro__) if name in vars(base))
        own = inspect.getattr_static(cls, name)
        if isinstance(first, property) and inspect.isfunction(own):
            yield f"{name} must be a property, found a method; put @property above it"
        elif inspect.isfunction(first) and not callable(getattr(cls, name)):
            found = "a property; remove @property" if isinstance(own, property) else f"{own!r}; use another name for it"
            yield f"{name} must be a method, found {found}"


def malformed(cls: type[Config]) -> Iterator[str]:
    """Yield one line for each mistake in the declaration of a class's parameters, presets, methods and properties."""
    if lost := list(_undeclared(cls)):
        how = f"put @dataclass(frozen=True) on top of class {cls.__name__}, and a type after each name"
        yield f"{how}, to make {', '.join(lost)} parameters"
        return
    yield from _exchanged(cls)
    for field in dataclasses.fields(cls):
        how = f"write {field.name}: TYPE = parameter(DEFAULT, 'what it is')"
        if field.default is dataclasses.MISSING:
            yield f"parameter {field.name} has no default; {how}"
        elif "doc" not in field.metadata:
            yield f"parameter {field.name} has no description; {how}"
    if not isinstance(cls.presets, Mapping) or not all(isinstance(value, Mapping) for value in cls.presets.values()):
        yield f"presets must map each preset's name to a mapping of settings, found {cls.presets!r}"
    try:
        cls.describe_parameters()
        cls()
    except UsageError:
        pass  # the checks of a class may reject its own defaults
    except Exception as error:
        yield f"it cannot be made with its defaults: {with_line(error)}"


def _origin(point: metadata.EntryPoint) -> str:
    return point.value if point.dist is None else f"{point.value} (package {point.dist.name})"
