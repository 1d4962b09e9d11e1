"""Logs that have nothing to do with failures of Intel GPUs, some of them close by."""

OTHER = {
    "a training run that went well": """
(TaskRunner pid=811) Using legacy worker implementation: disable
(WorkerDict pid=1212) Model config after override: Qwen2Config {"hidden_size": 896}
(WorkerDict pid=1212) NCCL/XCCL process group initialised, world size 2
(TaskRunner pid=811) step:1 - actor/entropy:0.43 - actor/kl_loss:0.0 - perf/throughput:812.3
(TaskRunner pid=811) step:2 - actor/entropy:0.41 - actor/kl_loss:0.001 - perf/throughput:820.1
(TaskRunner pid=811) Final validation metrics: {'val-core/openai/gsm8k/reward/mean@1': 0.61}""",
    "CUDA out of memory": """
Traceback (most recent call last):
  File "train.py", line 12, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB
[rank0]: If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True""",
    "NCCL watchdog": """
[rank1]:[E ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)
[rank1]:[E ProcessGroupNCCL.cpp:695] Timeout at NCCL work: 4, last enqueued NCCL work: 5
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  NCCL communicator was aborted on rank 1.
Fatal Python error: Aborted""",
    "pip": """
Collecting torch==2.13.0
  Downloading torch-2.13.0+xpu-cp311-cp311-linux_x86_64.whl (1.2 GB)
Requirement already satisfied: intel-sycl-rt==2026.0.0 in ./lib/python3.11/site-packages
Installing collected packages: oneccl, intel-opencl-rt, triton-xpu, torch
Successfully installed oneccl-2022.0.0 torch-2.13.0+xpu triton-xpu-3.8.0""",
    "a hub download that fails": """
Downloading shards:  50%|█████     | 1/2 [00:10<00:10, 10.2s/it]
requests.exceptions.ReadTimeout: (ReadTimeoutError("HTTPSConnectionPool(host='example.org', port=443)"))
The above exception was the direct cause of the following exception:
huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub
OSError: We couldn't connect to the hub to load the files, and couldn't find them in the cached files.""",
    "a plain traceback": """
Traceback (most recent call last):
  File "/home/user/reward.py", line 3, in compute_score
    return table[key]
KeyError: 'answer'
During handling of the above exception, another exception occurred:
ValueError: the reward function returned None""",
    "a healthy boot": """
[    3.1] xe 0000:03:00.0: [drm] Using GuC firmware from xe/bmg_guc_70.bin version 70.36.0
[    3.2] xe 0000:03:00.0: [drm] Found battlemage (device ID e211) discrete display version 14.01
[    3.4] xe 0000:03:00.0: [drm] VRAM[0]: Usable physical size is 0x5e0000000
[    3.6] [drm] Initialized xe 1.1.0 for 0000:03:00.0 on minor 1
[    4.0] i915 0000:00:02.0: [drm] GT0: GuC firmware i915/tgl_guc_70.bin version 70.13.1""",
    "Ray start and stop": """
2026-09-01 10:00:00,000 INFO worker.py:1918 -- Started a local Ray instance.
(autoscaler +12s) Tip: use `ray status` to view detailed cluster status.
(raylet) [2026-09-01 10:00:12] Spilled 2048 MiB, 3 objects, write throughput 512 MiB/s.
(pid=1301) Calling ray.init() again after it has already been called.
2026-09-01 10:10:00,000 INFO node.py -- Stopped only 7 out of 7 Ray processes.""",
    "vLLM starts": """
INFO 09-01 10:00:00 [__init__.py:239] Automatically detected platform xpu.
INFO 09-01 10:00:09 [config.py:600] This model supports multiple tasks: {'generate'}. Defaulting to 'generate'.
INFO 09-01 10:00:20 [xpu_worker.py:180] Memory profiling takes 3.1 seconds. free memory 20.1/22.7 GiB
INFO 09-01 10:00:25 [kv_cache_utils.py:634] GPU KV cache size: 120,112 tokens
INFO 09-01 10:00:31 [loggers.py:87] Avg prompt throughput: 1024 tokens/s""",
    "torchrun with a wrong argument": """
W0901 10:00:00 torch/distributed/run.py:803] Setting OMP_NUM_THREADS environment variable for each process to be 1
usage: train.py [-h] --config CONFIG
train.py: error: the following arguments are required: --config
E0901 10:00:03 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 2) local_rank: 0
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:""",
    "Slurm": """
slurmstepd: error: *** JOB 4711 ON node17 CANCELLED AT 2026-09-01T10:00:00 DUE TO TIME LIMIT ***
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
srun: error: node17: task 0: Killed
srun: launch/slurm: _step_signal: Terminating StepId=4711.0
+ exit 143""",
    "Docker build": """
Step 4/9 : RUN apt-get update && apt-get install -y libze1 libze-intel-gpu1 intel-opencl-icd
 ---> Running in 8f1c2d3e4a5b
E: Unable to locate package libze-intel-gpu1
The command '/bin/sh -c apt-get update' returned a non-zero code: 100
ERROR: failed to solve: process did not complete successfully""",
    "a compiler": """
[ 45%] Building CXX object src/CMakeFiles/app.dir/main.cpp.o
src/main.cpp:14:10: fatal error: sycl/sycl.hpp: No such file or directory
   14 | #include <sycl/sycl.hpp>
compilation terminated.
make: *** [Makefile:136: all] Error 2""",
    "pytest": """
============================= test session starts ==============================
collected 12 items
tests/test_device.py ....F.......                                        [100%]
E       AssertionError: assert 'cpu' == 'xpu'
FAILED tests/test_device.py::test_name - AssertionError: assert 'cpu' == 'xpu'""",
    "a web server": """
10.0.0.1 - - [01/Sep/2026:10:00:00 +0000] "POST /v1/completions HTTP/1.1" 200 512
10.0.0.2 - - [01/Sep/2026:10:00:01 +0000] "GET /health HTTP/1.1" 200 2
10.0.0.2 - - [01/Sep/2026:10:00:02 +0000] "GET /metrics HTTP/1.1" 503 19
2026/09/01 10:00:03 [error] 31#31: *7 upstream timed out (110: Connection timed out)
2026/09/01 10:00:04 [notice] 1#1: signal 15 (SIGTERM) received, exiting""",
    "no disk": """
Traceback (most recent call last):
  File "/opt/env/lib/python3.11/site-packages/torch/serialization.py", line 628, in _save
OSError: [Errno 28] No space left on device: '/checkpoints/global_step_20/model.pt'
RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0
Error executing job with overrides: ['trainer.save_freq=20']""",
    "a diverging run": """
step:101 - actor/grad_norm:12.3 - actor/loss:nan
step:102 - actor/grad_norm:nan - actor/loss:nan
WARN: rank 0 grad_norm is not finite: nan
WARN: rank 1 grad_norm is not finite: nan
RuntimeError: probability tensor contains either `inf`, `nan` or element < 0""",
    "a configuration error": """
Error executing job with overrides: ['actor_rollout_ref.rollout.nme=vllm']
hydra.errors.ConfigCompositionException: Could not override 'actor_rollout_ref.rollout.nme'.
To append to your config use +actor_rollout_ref.rollout.nme=vllm
Key 'nme' is not in struct
    full_key: actor_rollout_ref.rollout.nme""",
    "a version listing": """
torch 2.13.0+xpu, oneAPI 20260000, oneCCL 2022.2
Platform #0: Intel(R) oneAPI Unified Runtime over Level-Zero
Device #0: Intel(R) Arc(TM) Pro B60 Graphics, driver version 1.14.38308
CCL_ALLREDUCE=topo CCL_ATL_TRANSPORT=ofi ZE_AFFINITY_MASK=0,1
ONEAPI_DEVICE_SELECTOR is not set""",
    "oneCCL talks": """
2026:09:01-10:00:00:(4711) |CCL_INFO| library version: 2022.2 release
2026:09:01-10:00:00:(4711) |CCL_INFO| OS info: Linux node-a 6.14.0
2026:09:01-10:00:00:(4711) |CCL_INFO| topology recognition shows PCIe connection between devices
2026:09:01-10:00:01:(4711) |CCL_INFO| allreduce selection: main table: 0 - max : topo
2026:09:01-10:00:09:(4711) |CCL_INFO| finalizing global""",
    "a game": """
err:   VK_ERROR_OUT_OF_DATE_KHR while presenting
info:  DXVK: v2.5
warn:  D3D11DXGIDevice: queried memory budget 12 GiB
err:   failed to create swapchain
info:  Presenter: got VK_SUBOPTIMAL_KHR, recreating""",
    "git": """
remote: Enumerating objects: 12, done.
Auto-merging verl/workers/fsdp_workers.py
CONFLICT (content): Merge conflict in verl/workers/fsdp_workers.py
error: could not apply 0f1e2d3... device name from the platform
hint: Resolve all conflicts manually""",
}
