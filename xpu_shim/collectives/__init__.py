"""Reductions on xpu tensors: averages as SUM and a division, MIN, MAX and PRODUCT checked before they are trusted.

oneCCL refuses AVG on its scheduler path (and nobody chooses the path), so no AVG may reach it. Three places see every
reduction of torch between them:

- FSDP2 asks `_get_gradient_divide_factors` which reduction to use (`xpu_shim.patches.torch.fsdp2_sum`);
- Python code ends at a method of `torch.distributed.ProcessGroup` (`process_group`);
- functional collectives, DTensor and compiled code end at a `_c10d_functional` kernel (`functional`).

Everything decides by the device of the tensor. The backend's name does not tell: a group made with `cpu:gloo,xpu:xccl`
answers with that whole string.
"""
