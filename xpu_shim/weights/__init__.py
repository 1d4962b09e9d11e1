"""Weight sync from a training rank to its rollout engine, through shared memory, without tensor IPC.

A sync has two ends, each in its own process, that meet at verl's ZeroMQ address:

- `rendezvous`: who is there? A peer without the shim is recognised by its first answer and served by `legacy`.
- `channel`: after the meeting, a private Unix socket between exactly two processes. It carries small frames (`wire`) and
  the file descriptor of the shared memory (`segment`); the kernel tells at once when the other end is gone.
- `sender` and `receiver`: the two ends. A few slots of the segment are in flight at any time, so the sender's copy, the
  receiver's copy to the device and the loading of what has arrived go on side by side.
- `early`, `partners`, `call`: an end that fails or dies before they meet. What a process says itself, what its pid shows,
  and what becomes of the trainer's call of the rollout.
- `tensors`, `staging`, `ties`: any tensor as bytes and back, host buffers the device can reach fast, weights seen twice.
- `stale`: what a killed run left behind.

Every wait has a limit (`settings`) and every failure one type (`errors`).
"""
