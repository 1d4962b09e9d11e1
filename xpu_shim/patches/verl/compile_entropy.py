"""verl compiles the entropy only where Triton can generate code for the XPU."""

from __future__ import annotations

from xpu_shim.core.patch import Install, Patch

PATCH = Patch(
    id="verl.compile_entropy",
    targets=("verl.workers.engine.fsdp.transformer_impl:FSDPEngine.__init__",),
    why=(
        "`use_torch_compile` is on by default. Without triton's Intel backend the first step that computes an entropy "
        "fails: `torch._inductor.exc.InductorError: RuntimeError: 0 active drivers ([]). There should only be one.`"
    ),
    how=(
        "After the engine was built, its entropy function is the plain one where triton has no working Intel backend. "
        "With one, it stays compiled. The setting itself is not changed."
    ),
    remove_when="PyTorch falls back to eager where no Triton backend serves the device.",
    versions={"verl": ("0.7.1", "0.10")},
    processes=("driver", "worker"),
)


def apply(install: Install) -> None:
    install.replace("FSDPEngine.__init__", eager)


def eager(original):
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        from xpu_shim.models.compilation import run_eagerly

        run_eagerly(self, "compute_entropy_from_logits")

    return __init__
