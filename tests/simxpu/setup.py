"""Builds simxpu._C against the torch of the environment.

torch is looked up, never imported and never downloaded, so this works with and without build isolation:

    pip install --no-build-isolation ./tests/simxpu     (preferred)
    pip install ./tests/simxpu
"""

import importlib.util
import os
import pathlib
import re
import site
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).parent
SOURCES = "src/simxpu/csrc"
#: Compiles that run at once; each takes up to 0.7 GB.
JOBS = int(os.environ.get("SIMXPU_BUILD_JOBS", "2"))
#: pybind11's templates take 0.9 GB: compiled while nothing else is.
ALONE = "bindings.cpp"


def find_torch() -> pathlib.Path:
    """The directory of the installed torch package; SystemExit if there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None:  # an isolated build hides the environment's packages: look where they are
        known = set(sys.path)
        for scheme in ("purelib", "platlib"):
            site.addsitedir(sysconfig.get_path(scheme))
        spec = importlib.util.find_spec("torch")
        sys.path[:] = [p for p in sys.path if p in known]  # their setuptools must not replace the build's own
    if spec is None or spec.origin is None:
        raise SystemExit(
            "simxpu is built against an installed torch, and there is none in this environment "
            f"({sys.prefix}). Install a CPU build first, e.g. torch==2.13.0, then try again."
        )
    return pathlib.Path(spec.origin).parent


def version_of(torch: pathlib.Path) -> str:
    return re.search(r"__version__ = '([^']+)'", (torch / "version.py").read_text()).group(1)


class BuildExtension(build_ext):
    """Compiles the sources of the extension side by side."""

    def build_extension(self, ext):
        compile_one = self.compiler.compile

        def compile_all(sources, **kwargs):
            done = {s: compile_one([s], **kwargs) for s in sources if s.endswith(ALONE)}
            others = [s for s in sources if s not in done]
            with ThreadPoolExecutor(JOBS) as pool:
                done.update(zip(others, pool.map(lambda s: compile_one([s], **kwargs), others), strict=True))
            return [o for s in sources for o in done[s]]

        self.compiler.compile = compile_all
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile = compile_one


class BuildPython(build_py):
    """Adds a note of the torch that the extension was built against, and the start-up file."""

    def run(self):
        super().run()
        package = pathlib.Path(self.build_lib) / "simxpu"
        (package / "_built_for.py").write_text(f"TORCH_VERSION = {version_of(TORCH)!r}\n")
        self.copy_file(str(HERE / "src/simxpu_sysfs.pth"), str(pathlib.Path(self.build_lib) / "simxpu_sysfs.pth"))

    def get_outputs(self, *args, **kwargs):
        built = pathlib.Path(self.build_lib)
        extra = [str(built / "simxpu/_built_for.py"), str(built / "simxpu_sysfs.pth")]
        return super().get_outputs(*args, **kwargs) + extra


TORCH = find_torch()

setup(
    ext_modules=[
        Extension(
            "simxpu._C",
            # Slowest first, so that none of them is left to compile alone at the end.
            sources=[
                f"{SOURCES}/{name}.cpp"
                for name in [
                    "bindings",
                    "c10d_ops",
                    "process_group",
                    "work",
                    "fallback",
                    "kernels",
                    "copies",
                    "random",
                    "alias",
                    "memory",
                    "hooks",
                    "guard",
                    "pinned_memory",
                    "streams",
                    "devices",
                    "card_memory",
                    "faults",
                    "probe",
                ]
            ],
            # A torch installed after the last build makes that build stale.
            depends=[*(str(p.relative_to(HERE)) for p in (HERE / SOURCES).glob("*.h")), str(TORCH / "version.py")],
            include_dirs=[str(TORCH / "include"), str(TORCH / "include/torch/csrc/api/include")],
            library_dirs=[str(TORCH / "lib")],
            libraries=["torch_python", "torch_cpu", "torch", "c10"],
            runtime_library_dirs=[str(TORCH / "lib")],
            define_macros=[("USE_DISTRIBUTED", None), ("TORCH_EXTENSION_NAME", "_C")],
            extra_compile_args=[
                "-std=c++20",
                "-O1",
                "-g0",
                # The compiler collects garbage earlier: a fifth less memory for a tenth more time.
                "--param=ggc-min-expand=20",
                "--param=ggc-min-heapsize=131072",
                "-fvisibility=hidden",
                "-Wno-attributes",
                "-Wno-interference-size",
            ],
            language="c++",
        )
    ],
    cmdclass={"build_ext": BuildExtension, "build_py": BuildPython},
)
