"""The finder on small modules made for the purpose: what it must survive in other people's import systems."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run(folder: Path, program: str, **files: str) -> str:
    """Write `files` (paths without the ending), run `program` with a finder on `toy` modules, return its stdout."""
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    prelude = f"""
        import sys
        sys.path[:0] = [{str(ROOT)!r}, {str(folder)!r}]
        from xpu_shim import _finder
        seen = []
        class Runtime:
            on_import = staticmethod(lambda name, module: seen.append((name, module)))
        sys.modules["xpu_shim.runtime"] = Runtime
        import xpu_shim
        xpu_shim.runtime = Runtime
        finder = _finder.Finder(frozenset({{"toy", "toy.inner", "pkg.sub", "selfswap"}}))
        sys.meta_path.insert(0, finder)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(prelude) + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        env={"XPU_SHIM": "0", "PATH": "/usr/bin:/bin"},
        cwd=folder,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_a_target_is_handed_over_after_it_was_executed(tmp_path):
    out = run(tmp_path, "import toy; print(seen == [('toy', toy)], toy.value)", toy="value = 1")
    assert out == "True 1"


def test_other_modules_are_not_touched(tmp_path):
    out = run(tmp_path, "import other; print(seen, 'exec_module' in vars(other.__loader__))", other="")
    assert out == "[] False"


def test_the_loader_keeps_its_type(tmp_path):
    program = """
        import toy, inspect, importlib.machinery, pkgutil
        print(type(toy.__loader__) is importlib.machinery.SourceFileLoader, inspect.getsource(toy.f).strip())
    """
    assert run(tmp_path, program, toy="def f(): return 1") == "True def f(): return 1"


def test_python_dash_m_still_works(tmp_path):
    program = "import runpy; print(runpy.run_module('toy', run_name='__main__')['value'])"
    assert run(tmp_path, program, toy="value = __name__") == "__main__"


def test_reload_runs_the_hook_again(tmp_path):
    program = "import toy, importlib; importlib.reload(toy); print([name for name, _ in seen])"
    assert run(tmp_path, program, toy="") == "['toy', 'toy']"


def test_a_module_that_replaces_itself_is_handed_over_as_importers_get_it(tmp_path):
    program = "import selfswap; print(seen[0][1] is selfswap, selfswap.other)"
    swap = """
        import sys, types
        new = types.ModuleType(__name__); new.other = True
        sys.modules[__name__] = new
    """
    assert run(tmp_path, program, selfswap=swap) == "True True"


def test_a_failing_hook_does_not_fail_the_import(tmp_path):
    program = """
        def fail(name, module): raise RuntimeError("boom")
        Runtime.on_import = staticmethod(fail)
        import toy
        print(toy.value, [(name, str(error)) for name, error in _finder.errors])
    """
    assert run(tmp_path, program, toy="value = 1") == "1 [('toy', 'boom')]"


def test_a_failing_import_is_retried_with_the_hook(tmp_path):
    program = """
        import os
        try: import toy
        except ZeroDivisionError: pass
        os.environ["FINE"] = "1"
        import toy
        print([name for name, _ in seen])
    """
    toy = "import os\nif 'FINE' not in os.environ: 1/0"
    assert run(tmp_path, program, toy=toy) == "['toy']"


def test_a_parent_that_waits_for_a_thread_importing_a_target_does_not_deadlock(tmp_path):
    """wrapt's own finder never comes back here: it looks the parent up, and waits for its lock."""
    program = """
        import faulthandler; faulthandler.dump_traceback_later(20, exit=True)
        import pkg
        print(pkg.ended, [name for name, _ in seen])
    """
    parent = """
        import importlib, threading
        thread = threading.Thread(target=importlib.import_module, args=["pkg.sub"], daemon=True)
        thread.start(); thread.join(10); ended = not thread.is_alive()
    """
    # Without any finder of ours this ends at once: `import_module` of a child does not wait for a parent in the making.
    assert run(tmp_path, program, **{"pkg/__init__": parent, "pkg/sub": ""}) == "True ['pkg.sub']"


def test_eight_threads_get_one_hook_call(tmp_path):
    program = """
        import threading
        threads = [threading.Thread(target=lambda: __import__("toy")) for _ in range(8)]
        [t.start() for t in threads]; [t.join(20) for t in threads]
        print([name for name, _ in seen])
    """
    assert run(tmp_path, program, toy="import time; time.sleep(0.2)") == "['toy']"


def test_a_finder_that_asks_again_for_the_same_name_does_not_recurse(tmp_path):
    program = """
        import importlib.util
        class Curious:
            busy = False
            def find_spec(self, name, path=None, target=None):
                if name != "toy" or self.busy: return None
                self.busy = True
                try: return importlib.util.find_spec(name)
                finally: self.busy = False
        sys.meta_path.insert(1, Curious())
        import toy
        print([name for name, _ in seen])
    """
    assert run(tmp_path, program, toy="") == "['toy']"


def test_one_loader_object_for_many_modules(tmp_path):
    """pytest's assertion rewriter serves every module with one loader."""
    program = """
        import importlib.machinery
        class One:
            def find_spec(self, name, path=None, target=None):
                return importlib.machinery.ModuleSpec(name, self) if name in ("toy", "plain") else None
            def create_module(self, spec): return None
            def exec_module(self, module): module.made = True
        sys.meta_path.insert(1, One())
        import plain, toy
        print([name for name, _ in seen], plain.made, toy.made)
    """
    assert run(tmp_path, program) == "['toy'] True True"


def test_a_loader_that_takes_no_attributes_is_reported(tmp_path):
    program = """
        import importlib.machinery
        class Slots:
            __slots__ = ()
            def create_module(self, spec): return None
            def exec_module(self, module): module.made = True
        class Find:
            def find_spec(self, name, path=None, target=None):
                return importlib.machinery.ModuleSpec(name, Slots()) if name == "toy" else None
        sys.meta_path.insert(1, Find())
        import toy
        print(toy.made, seen, _finder.errors[0][0], type(_finder.errors[0][1]).__name__)
    """
    assert run(tmp_path, program) == "True [] toy TypeError"


def test_a_lazy_module_is_handed_over_when_it_materialises(tmp_path):
    program = """
        import importlib.util
        spec = importlib.util.find_spec("toy")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        module = importlib.util.module_from_spec(spec); sys.modules["toy"] = module
        spec.loader.exec_module(module)
        before = list(seen); module.value
        print(before, [name for name, _ in seen])
    """
    assert run(tmp_path, program, toy="value = 1") == "[] ['toy']"


@pytest.mark.parametrize("strict", ["1", "0"])
def test_strict_mode_raises(tmp_path, strict):
    program = f"""
        import os; os.environ["XPU_SHIM_STRICT"] = {strict!r}
        def fail(name, module): raise RuntimeError("boom")
        Runtime.on_import = staticmethod(fail)
        try: import toy; print("imported")
        except RuntimeError as error: print(error)
    """
    assert run(tmp_path, program, toy="") == ("boom" if strict == "1" else "imported")
