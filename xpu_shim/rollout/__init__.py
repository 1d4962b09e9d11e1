"""vLLM as verl's rollout on Intel GPUs: the server's environment and arguments, device memory, sleep mode."""
