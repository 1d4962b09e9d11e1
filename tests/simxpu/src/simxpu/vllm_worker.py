"""vLLM's CPU worker, which asks a simulated card for room as vLLM's worker for Intel GPUs does.

The model and its KV cache stay on the CPU, and the KV cache has the size the CPU build gives it. What a worker on a card
does first is done here, too, by vLLM's own functions: it chooses its card, takes a snapshot of the card's memory and
compares it with `gpu_memory_utilization`. So a driver that reports no free memory stops the engine, as on real cards.
"""

import gc

import torch
from vllm.v1.worker.cpu_worker import CPUWorker, logger


class CardWorker(CPUWorker):
    """A worker whose card is simulated; it computes on the CPU."""

    def init_device(self) -> None:
        super().init_device()
        # Not before the CPU worker, which has to replace parts of torch first.
        from vllm.utils.mem_utils import MemorySnapshot, format_gib
        from vllm.v1.worker.utils import request_memory

        card = torch.device("xpu", self.local_rank)
        torch.xpu.set_device(card)
        gc.collect()
        torch.xpu.empty_cache()
        # The CPU build answers for the host's memory; a worker on a card asks the card.
        hosts = torch.accelerator.get_memory_info
        torch.accelerator.get_memory_info = torch.xpu.mem_get_info
        try:
            self.init_snapshot = MemorySnapshot(device=card)
            self.requested_memory = request_memory(self.init_snapshot, self.cache_config)
        finally:
            torch.accelerator.get_memory_info = hosts
        logger.info("%s GiB of simulated card %s are requested", format_gib(self.requested_memory), card)
