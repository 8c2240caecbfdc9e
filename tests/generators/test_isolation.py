"""The generators work without torch, and importing them imports nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

ONLY_CORE = """
import sys
from importlib import metadata

allowed = {"numpy", "scipy", "PIL", "lrtasks", "numpy.libs", "scipy.libs"}
installed = set(metadata.packages_distributions())


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in installed - allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


for name in set(sys.modules):
    if name.partition(".")[0] in installed - allowed:
        del sys.modules[name]
sys.meta_path.insert(0, Absent())
"""


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_loads_nothing_heavy() -> None:
    code = "import sys, json, lrtasks, lrtasks.generators, lrtasks.check.task, lrtasks.generators.preview\n"
    code += "lrtasks.generators.names()\nprint(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    loaded = set(json.loads(python(code)))
    assert "numpy" in loaded
    heavy = {"torch", "pandas", "matplotlib", "scipy", "PIL", "numba", "lightning_fabric", "pyarrow", "rich"}
    assert not loaded & heavy


def test_importing_the_package_loads_not_even_numpy() -> None:
    assert python("import sys, lrtasks; print('numpy' in sys.modules)").strip() == "False"


def test_naming_tasks_imports_none_of_them() -> None:
    code = "import sys, lrtasks.generators as g; g.names()\n"
    code += "print([name for name in sys.modules if name.startswith('lrtasks.generators.tasks.')])"
    assert python(code).strip() == "[]"


def test_atomic_tasks_need_numpy_alone() -> None:
    code = f"""{ONLY_CORE}
import lrtasks
from lrtasks.generators import make, registry

for heavy in ("torch", "pandas", "matplotlib", "numba"):
    try:
        __import__(heavy)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{{heavy}} is not blocked")
for name in "context-shift cummax cumsum mips reverse select select-fixed shift solve solve-fixed sort".split():
    task = make(name, **registry.get(name).preset_values("small")[0])
    batch = task.batch(range(4))
    task.slices(batch)
    for floor in task.baselines().values():
        floor.fit([batch])
        floor.predict(batch)
    print(name, batch.x.shape)
lrtasks.check_task(make("shift", length=32))
"""
    assert len(python(code).splitlines()) == 11
