"""torch on one simulated device: memory, views, autograd, streams, random numbers, serialisation."""

import copy
import io
import pickle
import threading

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

D = "xpu"


def test_devices_and_the_accelerator_api():
    assert torch.accelerator.current_accelerator() == torch.device("xpu")
    assert torch.accelerator.device_count() == 4
    torch.xpu.set_device(2)
    assert torch.xpu.current_device() == 2 == torch.accelerator.current_device_index()
    assert torch.empty(1, device="xpu").device == torch.device("xpu:2")
    with torch.xpu.device(1):
        assert torch.empty(1, device="xpu").device.index == 1
    with torch.device("xpu:3"):
        assert torch.zeros(2).device == torch.device("xpu:3")
    torch.accelerator.set_device_index(0)
    with pytest.raises(RuntimeError, match="out of range"):
        torch.empty(1, device="xpu:7")
    assert not torch.cuda.is_available()


def test_the_current_device_is_per_thread():
    torch.xpu.set_device(1)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.xpu.current_device()))
    thread.start()
    thread.join()
    torch.xpu.set_device(0)
    assert seen == [0]


def test_properties():
    one, other = torch.xpu.get_device_properties(1), torch.xpu.get_device_properties(2)
    assert str(one.uuid) != str(other.uuid)
    assert one.total_memory == 24 << 30
    assert "Arc(TM) Pro B60" in torch.xpu.get_device_name(1)
    assert torch.xpu.get_device_capability()["has_fp16"]
    assert torch.xpu.is_bf16_supported()
    assert "Arc" in repr(one)


def test_copies_and_printing():
    x = torch.ones(3, device="xpu:1") + 1
    assert x.is_xpu
    assert repr(x) == "tensor([2., 2., 2.], device='xpu:1')"
    y = x.to("xpu:2")
    assert y.device.index == 2
    assert y.data_ptr() != x.data_ptr()
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
        x.numpy()
    assert x.type() == "torch.xpu.FloatTensor"


def test_devices_do_not_mix():
    for other in ("xpu:1", "cpu"):
        with pytest.raises(RuntimeError, match="same device"):
            torch.ones(3, device="xpu:0") + torch.ones(3, device=other)
    assert (torch.ones(3, device=D) * torch.tensor(2.0)).device.type == "xpu"


VIEWS = {
    "select": lambda x: x[1],
    "transpose": lambda x: x.t(),
    "slice": lambda x: x[:, ::2],
    "unfold": lambda x: x.unfold(1, 2, 1),
    "expand": lambda x: x.expand(2, 3, 4),
    "reshape": lambda x: x.reshape(-1),
    "as_strided": lambda x: x.as_strided((2, 2), (4, 1)),
    "dtype": lambda x: x.view(torch.int32),
    "chunk": lambda x: x.chunk(2, 1)[1],
    "split": lambda x: x.split(1)[2],
    "detach": lambda x: x.detach(),
    "diagonal": lambda x: x.diagonal(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_share_their_storage(name):
    x = torch.arange(12.0, device=D).view(3, 4)
    v = VIEWS[name](x)
    assert v.device == x.device
    assert v.untyped_storage()._cdata == x.untyped_storage()._cdata


def test_in_place_out_and_resize():
    x = torch.arange(12.0, device=D).view(3, 4)
    x.t()[0, 2] = 99
    assert x[2, 0].item() == 99
    y = x.clone()
    y.t_()
    assert y.shape == (4, 3)
    y.resize_(100)
    assert y.numel() == 100
    z = torch.empty(0, device=D)
    torch.add(x, x, out=z)
    assert torch.equal(z, x * 2)
    s = torch.arange(8.0, device="xpu:1")
    before = torch.xpu.memory_allocated(1)
    s.untyped_storage().resize_(0)
    assert torch.xpu.memory_allocated(1) == before - 512
    s.untyped_storage().resize_(32)
    s.copy_(torch.arange(8.0))
    assert torch.empty(0, device="xpu:1").set_(s.untyped_storage(), 2, (3,), (1,)).tolist() == [2, 3, 4]


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_equal_the_cpu(name):
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    model = copy.deepcopy(reference).to("xpu:1")
    pairs = [(m, OPTIMIZERS[name](m.parameters())) for m in (model, reference)]
    for _ in range(3):
        x = torch.randn(5, 8)
        for m, optimizer in pairs:
            optimizer.zero_grad()
            m(x.to(next(m.parameters()).device)).square().mean().backward()
            nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            optimizer.step()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        assert p.grad.device == torch.device("xpu:1")
        assert (p.cpu() - q).abs().max() < 1e-6
    pairs[0][1].load_state_dict(pairs[0][1].state_dict())


def test_low_precision():
    x = torch.randn(4, 4, device=D, dtype=torch.bfloat16)
    assert (x @ x).dtype == torch.bfloat16
    f = torch.randn(4, 4, device=D).to(torch.float8_e4m3fn)
    assert torch.equal(f.view(torch.uint8).view(torch.float8_e4m3fn).float(), f.float())
    assert torch.equal(f.cpu().float(), f.float().cpu())
    model = nn.Linear(4, 4).to(D)
    with torch.autocast("xpu", dtype=torch.bfloat16):
        y = model(torch.ones(2, 4, device=D))
    assert y.dtype == torch.bfloat16
    scaler, optimizer = torch.amp.GradScaler("xpu"), torch.optim.SGD(model.parameters(), 0.1)
    scaler.scale(model(torch.ones(2, 4, device=D)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize(
    ("location", "device"),
    [
        (None, "xpu:1"),
        ("cpu", "cpu"),
        ("xpu:2", "xpu:2"),
        (torch.device("xpu:3"), "xpu:3"),
        ({"xpu:1": "xpu:0"}, "xpu:0"),
        (lambda storage, _: storage, "cpu"),
    ],
)
def test_save_and_load(location, device):
    buffer = io.BytesIO()
    torch.save({"t": torch.arange(4, device="xpu:1")[1:], "m": nn.Linear(3, 3).to("xpu:1").state_dict()}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, map_location=location)
    assert str(loaded["t"].device) == device
    assert loaded["t"].tolist() == [1, 2, 3]


def test_pickle_deepcopy_and_dlpack():
    x = torch.randn(3, device="xpu:1")
    y = pickle.loads(pickle.dumps(x))
    assert y.device == x.device
    assert torch.equal(x, y)
    assert copy.deepcopy(x).device == x.device
    z = torch.from_dlpack(x)
    assert z.device == x.device
    assert z.data_ptr() == x.data_ptr()


def test_pinned_memory():
    x = torch.randn(10).pin_memory()
    assert x.is_pinned()
    assert x[3:].is_pinned()
    assert not torch.randn(3).is_pinned()
    y = x.to(D, non_blocking=True)
    assert torch.equal(y.cpu(), x)
    with pytest.raises(RuntimeError, match="pinned"):
        torch.empty(3, device=D, pin_memory=True)
    loader = torch.utils.data.DataLoader(torch.arange(8), batch_size=4, pin_memory=True)
    assert all(batch.is_pinned() for batch in loader)


def test_streams_and_events():
    stream = torch.xpu.Stream()
    start, end = torch.xpu.Event(enable_timing=True), torch.xpu.Event(enable_timing=True)
    current = torch.xpu.current_stream()
    start.record()
    with torch.xpu.stream(stream):
        assert torch.xpu.current_stream() == stream
        torch.ones(3, device=D).record_stream(stream)
    assert torch.xpu.current_stream() == current
    end.record()
    stream.wait_event(end)
    current.wait_stream(stream)
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 0
    event = torch.xpu.Event()
    event.record()
    with pytest.raises(RuntimeError, match="enable_timing"):
        start.elapsed_time(event)
    assert torch.accelerator.current_stream().device.type == "xpu"
    assert torch.xpu.Stream(device="xpu:2", priority=-1).device.index == 2


def test_memory_statistics():
    torch.xpu.empty_cache()
    torch.xpu.reset_peak_memory_stats()
    base = torch.xpu.memory_allocated()
    x = torch.empty(1 << 20, device=D)
    y = x + 1
    assert torch.xpu.memory_allocated() - base == 8 << 20
    free, total = torch.xpu.mem_get_info()
    assert total == 24 << 30
    assert free <= total - (8 << 20)
    del x, y
    assert torch.xpu.memory_allocated() == base
    assert torch.xpu.max_memory_allocated() - base >= 8 << 20
    torch.xpu.empty_cache()
    assert torch.xpu.memory_reserved() == base
    assert torch.accelerator.get_memory_info()[1] == total
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 100\.00 GiB"):
        torch.empty(100 << 30, device=D, dtype=torch.uint8)
    torch.xpu.set_per_process_memory_fraction(0.01)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 30, device=D, dtype=torch.uint8)
    torch.xpu.set_per_process_memory_fraction(1.0)


def test_random_numbers():
    torch.manual_seed(5)
    a = torch.randn(4, device=D)
    state = torch.xpu.get_rng_state()
    assert state.numel() == 16
    b = torch.randn(4, device=D)
    torch.xpu.set_rng_state(state)
    assert torch.equal(b, torch.randn(4, device=D))
    assert not torch.equal(a, b)
    torch.xpu.manual_seed_all(5)
    assert torch.equal(a, torch.randn(4, device=D))
    host = torch.get_rng_state()
    F.dropout(torch.ones(5, device=D))
    torch.randperm(7, device=D)
    torch.multinomial(torch.ones(5, device=D), 2)
    torch.bernoulli(torch.full((3,), 0.5, device=D))
    assert torch.equal(host, torch.get_rng_state())
    g = torch.Generator(device="xpu:1").manual_seed(3)
    x = torch.rand(3, device="xpu:1", generator=g)
    assert torch.equal(x, torch.rand(3, device="xpu:1", generator=g.manual_seed(3)))
    with pytest.raises(RuntimeError, match="xpu"):
        torch.rand(3, device=D, generator=torch.Generator())


def test_indexing_with_cpu_indices_and_host_reads():
    x = torch.randn(4, 6, device=D)
    assert torch.equal(x[torch.tensor([0, 2])].cpu(), x.cpu()[torch.tensor([0, 2])])
    x[x > 0.5] = 1.0
    assert x.max().item() == x.cpu().max().item()
    assert torch.nonzero(x).device.type == "xpu"
    assert torch.linalg.inv(torch.eye(3, device=D) * 2).cpu().diagonal().tolist() == [0.5] * 3


def test_convolution_and_attention_equal_the_cpu():
    torch.manual_seed(0)
    convolution = nn.Conv2d(2, 3, 3)
    model = copy.deepcopy(convolution).to(D)
    x = torch.randn(1, 2, 8, 8, requires_grad=True)
    y = x.detach().to(D).requires_grad_()
    convolution(x).square().sum().backward()
    model(y).square().sum().backward()
    assert torch.allclose(x.grad, y.grad.cpu(), atol=1e-5)
    assert torch.allclose(convolution.weight.grad, model.weight.grad.cpu(), atol=1e-4)
    q = torch.randn(2, 4, 7, 8)
    for mask in (None, torch.rand(7, 7) > 0.3):
        found = F.scaled_dot_product_attention(q.to(D), q.to(D), q.to(D), None if mask is None else mask.to(D))
        assert torch.equal(F.scaled_dot_product_attention(q, q, q, mask), found.cpu())


def test_nested_jagged_and_fake_tensors():
    nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged, device=D)
    assert nested.offsets().device.type == "xpu"
    assert torch.nested.to_padded_tensor((nested * 2).sin(), 0.0).shape == (2, 4, 3)
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(3, 4, device="xpu:1")
        assert (x @ x.t()).device == torch.device("xpu:1")
    with torch.device("meta"):
        model = nn.Linear(3, 3)
    assert model.to_empty(device="xpu:1").weight.device == torch.device("xpu:1")


def test_dispatch_modes_see_xpu_tensors():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append((str(function), args[0].device.type))
            return function(*args, **(kwargs or {}))

    x = torch.ones(3, device=D)
    with Recorder():
        (x + x).sum()
    assert seen == [("aten.add.Tensor", "xpu"), ("aten.sum.default", "xpu")]


def test_fresh_memory_is_nan():
    assert torch.empty(100, device=D).isnan().all()
    assert torch.empty(100, device=D, dtype=torch.bfloat16).isnan().all()
    assert torch.zeros(3, device=D).tolist() == [0, 0, 0]
