"""The platform vLLM uses beside simulated devices: its CPU platform, which keeps house as one with cards does."""

from vllm.platforms.cpu import CpuPlatform


class CardPlatform(CpuPlatform):
    """Models run on the CPU; workers take their place on a simulated card (`simxpu.vllm_worker`)."""

    @classmethod
    def check_and_update_config(cls, vllm_config) -> None:
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = "simxpu.vllm_worker.CardWorker"
        wanted = parallel.distributed_executor_backend
        super().check_and_update_config(vllm_config)
        # For the sake of thread placement the CPU platform turns `uni` into `mp`; platforms with cards leave it.
        if wanted == "uni":
            parallel.distributed_executor_backend = wanted
