"""Every collective of torch.distributed on XPU tensors, on four ranks."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from cases import case, device, main, rank, world
from simxpu import probe


def full(value, *size, dtype=torch.float32):
    return torch.full(size or (3,), value, device=device, dtype=dtype)


@case
def backend_is_xccl():
    assert dist.is_xccl_available()
    assert dist.group.WORLD._get_backend(device).name() == "xccl"
    assert dist.get_backend_config() == "cpu:gloo,xpu:xccl"


@case
def all_reduce():
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.uint8):
        x = full(rank + 1, dtype=dtype)
        dist.all_reduce(x)
        assert x.tolist() == [10] * 3, dtype
        assert x.device == device
    for op, expected in (
        (dist.ReduceOp.AVG, 2.5),
        (dist.ReduceOp.MIN, 1),
        (dist.ReduceOp.MAX, 4),
        (dist.ReduceOp.PRODUCT, 24),
        (dist._make_nccl_premul_sum(0.5), 5),
    ):
        x = full(rank + 1.0)
        dist.all_reduce(x, op)
        assert x.tolist() == [expected] * 3, (op, x)
    for op, expected in ((dist.ReduceOp.BAND, 4), (dist.ReduceOp.BOR, 7), (dist.ReduceOp.BXOR, 0)):
        x = full(4 + rank, dtype=torch.int64)
        dist.all_reduce(x, op)
        assert x.tolist() == [expected] * 3, (op, x)


@case
def all_reduce_coalesced():
    xs = [full(rank + 1.0), full(2.0, 5)]
    dist.all_reduce_coalesced(xs)
    assert xs[0].tolist() == [10] * 3
    assert xs[1].tolist() == [8] * 5


@case
def reduce():
    x = full(rank + 1.0)
    dist.reduce(x, 1)
    assert x.tolist() == ([10] * 3 if rank == 1 else [rank + 1] * 3)
    x = full(rank + 1.0)
    dist.reduce(x, 0, dist.ReduceOp.AVG)
    assert rank or x.tolist() == [2.5] * 3


@case
def broadcast():
    x = full(float(rank))
    dist.broadcast(x, 2)
    assert x.tolist() == [2] * 3


@case
def all_gather():
    parts = [full(0.0, 2) for _ in range(world)]
    dist.all_gather(parts, full(float(rank), 2))
    assert [p[0].item() for p in parts] == [0, 1, 2, 3]
    whole = full(0.0, 2 * world)
    dist.all_gather_into_tensor(whole, full(float(rank), 2))
    assert whole.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    small = full(0.0, 4 * world).to(torch.float8_e4m3fn)
    dist.all_gather_into_tensor(small, full(float(rank), 4).to(torch.float8_e4m3fn))
    assert small.float()[-1].item() == 3


@case
def gather_and_scatter():
    parts = [full(0.0, 1) for _ in range(world)] if rank == 1 else None
    dist.gather(full(float(rank), 1), parts, dst=1)
    assert parts is None or [p.item() for p in parts] == [0, 1, 2, 3]
    x = full(0.0, 1)
    dist.scatter(x, [full(float(i), 1) for i in range(world)] if rank == 0 else None, src=0)
    assert x.item() == rank


@case
def reduce_scatter():
    x = full(0.0, 2)
    dist.reduce_scatter_tensor(x, torch.arange(2.0 * world, device=device))
    assert x.tolist() == [8.0 * rank, 8.0 * rank + 4]
    dist.reduce_scatter_tensor(x, torch.arange(2.0 * world, device=device), dist.ReduceOp.AVG)
    assert x.tolist() == [2.0 * rank, 2.0 * rank + 1]
    dist.reduce_scatter_tensor(x, torch.arange(2.0 * world, device=device), dist._make_nccl_premul_sum(0.5))
    assert x.tolist() == [4.0 * rank, 4.0 * rank + 2]
    dist.reduce_scatter(x, [full(float(i), 2) for i in range(world)])
    assert x.tolist() == [4.0 * rank] * 2


@case
def all_to_all():
    x = full(0.0, world)
    dist.all_to_all_single(x, torch.arange(float(world), device=device) + 10 * rank)
    assert x.tolist() == [10.0 * i + rank for i in range(world)]
    to = [i + 1 for i in range(world)]  # rank i gets i + 1 elements from each
    x = full(0.0, world * (rank + 1))
    dist.all_to_all_single(x, full(float(rank), sum(to)), [rank + 1] * world, to)
    assert x.tolist() == [float(r) for r in range(world) for _ in range(rank + 1)]
    parts = [full(0.0, 1) for _ in range(world)]
    dist.all_to_all(parts, [full(10.0 * rank + i, 1) for i in range(world)])
    assert [p.item() for p in parts] == [10.0 * i + rank for i in range(world)]


@case
def point_to_point():
    if rank == 0:
        dist.send(full(1.0, 2), 1)
    elif rank == 1:
        x = full(0.0, 2)
        dist.recv(x, 0)
        assert x.tolist() == [1, 1]
    x = full(0.0, 1)
    operations = [
        dist.P2POp(dist.isend, full(float(rank), 1), (rank + 1) % world),
        dist.P2POp(dist.irecv, x, (rank - 1) % world),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert x.item() == (rank - 1) % world


@case
def barrier_and_objects():
    dist.barrier()
    dist.barrier(device_ids=[device.index])
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    assert objects[3] == {"rank": 3}
    objects = [rank]
    dist.broadcast_object_list(objects, 0)
    assert objects == [0]


@case
def objects():
    gathered = [None] * world if rank == 1 else None
    dist.gather_object({"rank": rank}, gathered, dst=1)
    assert rank != 1 or gathered == [{"rank": r} for r in range(world)]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(world)] if rank == 2 else None, src=2)
    assert mine == [f"for {rank}"]
    for where in (torch.device("cpu"), device):  # the bytes travel as a tensor of that device
        if rank == 0:
            dist.send_object_list(["hello", {"x": 1}], dst=3, device=where)
        elif rank == 3:
            received = [None, None]
            dist.recv_object_list(received, src=0, device=where)
            assert received == ["hello", {"x": 1}]


@case
def single_tensor_names():
    gathered = full(0.0, world * 3)
    dist.all_gather_single(gathered, full(rank + 1.0))
    assert gathered.tolist() == [r + 1 for r in range(world) for _ in range(3)]
    scattered = full(0.0)
    dist.reduce_scatter_single(scattered, full(rank + 1.0, world * 3))
    assert scattered.tolist() == [10] * 3


@case
def monitored_barrier_is_gloos_alone():
    """torch offers it for gloo groups only; on xpu:xccl it says so and on a gloo group it works."""
    group = dist.new_group(backend="gloo")
    dist.monitored_barrier(group)


@case
def cpu_tensors_use_gloo():
    probe.reset()
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x.tolist() == [4, 4]
    assert probe.counts() == {}


@case
def asynchronous_works_complete_by_themselves():
    import time

    x = full(rank + 1.0)
    work = dist.all_reduce(x, dist.ReduceOp.AVG, async_op=True)
    limit = time.monotonic() + 60
    while not work.is_completed():  # nobody calls wait()
        assert time.monotonic() < limit
        time.sleep(0.001)
    assert x.tolist() == [2.5] * 3
    work.wait()
    work.wait()  # a second wait must not divide, or copy, again
    assert x.tolist() == [2.5] * 3
    y = full(0.0, 1)
    work = dist.reduce_scatter_tensor(y, full(1.0, world), dist.ReduceOp.AVG, async_op=True)
    done = work.get_future().then(lambda f: f.value()[0] * 2)
    assert done.wait().item() == 2
    assert done.value().device == device


@case
def a_work_is_not_complete_before_its_peers_join():
    import time

    dist.barrier()
    if rank == 0:
        time.sleep(1)
    x = full(1.0)
    work = dist.all_reduce(x, async_op=True)
    if rank == 1:
        assert not work.is_completed()
    work.wait()
    assert work.is_completed()
    assert x.tolist() == [4] * 3


@case
def groups():
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3], backend="xccl")]
    x = full(1.0)
    dist.all_reduce(x, group=pairs[rank // 2])
    assert x.tolist() == [2] * 3


@case
def coalescing_manager():
    with dist._coalescing_manager(group=dist.group.WORLD, device=device, async_ops=True) as manager:
        a, b = full(1.0, 2), full(1.0, 5)
        dist.all_reduce(a)
        dist.all_reduce(b)
    manager.wait()
    assert a.tolist() == [4] * 2
    assert b.tolist() == [4] * 5


@case
def functional_collectives():
    group = dist.group.WORLD
    assert funcol.all_reduce(full(rank + 1.0), "avg", group).tolist() == [2.5] * 3
    assert funcol.all_gather_tensor(full(1.0, 2), 0, group).shape == (8,)
    assert funcol.reduce_scatter_tensor(full(rank + 1.0, 8), "avg", 0, group).tolist() == [2.5] * 2
    outputs = funcol.all_gather_into_tensor_coalesced([full(1.0, 2), full(2.0, 3)], group)
    assert [tuple(o.shape) for o in outputs] == [(8,), (12,)]


@case
def the_probe_counts_every_route():
    from torch.distributed.tensor import DTensor, Partial, Replicate, init_device_mesh

    probe.reset()
    dist.all_reduce(full(1.0), dist.ReduceOp.AVG)
    funcol.all_reduce(full(1.0), "avg", dist.group.WORLD).tolist()
    mesh = init_device_mesh("xpu", (world,))
    DTensor.from_local(full(1.0), mesh, [Partial("avg")]).redistribute(mesh, [Replicate()]).to_local().tolist()
    assert probe.counts()["all_reduce:avg"] == 3, probe.counts()
    assert probe.avg_reductions() == 3
    dist.all_reduce(full(1.0))
    assert probe.avg_reductions() == 3
    assert probe.counts()["all_reduce:sum"] == 1


if __name__ == "__main__":
    main()
