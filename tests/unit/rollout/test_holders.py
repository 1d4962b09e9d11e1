"""Who holds memory of a card, read from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

from xpu_shim.rollout.holders import Holder, holders

XE = """pos:\t0
flags:\t0100002
drm-driver:\txe
drm-client-id:\t{client}
drm-pdev:\t{address}
drm-total-system:\t10240 KiB
drm-total-vram0:\t{size} KiB
drm-resident-vram0:\t0
drm-shared-vram0:\t0
"""
CARD, OTHER = "0000:03:00.0", "0000:84:00.0"


def process(proc: Path, pid: int, name: str, *files: str) -> None:
    folder = proc / str(pid) / "fdinfo"
    folder.mkdir(parents=True)
    (proc / str(pid) / "comm").write_text(name + "\n")
    (folder / "0").write_text("pos:\t0\nflags:\t02\n")
    for number, text in enumerate(files, 5):
        (folder / str(number)).write_text(text)


def test_processes_of_one_card_largest_first(tmp_path: Path) -> None:
    process(tmp_path, 11, "trainer", XE.format(client=1, address=CARD, size=2048))
    process(tmp_path, 12, "vllm", XE.format(client=2, address=CARD, size=4096))
    process(tmp_path, 13, "elsewhere", XE.format(client=3, address=OTHER, size=8192))
    process(tmp_path, 14, "shell")
    (tmp_path / "meminfo").write_text("")
    assert holders(CARD, proc=str(tmp_path)) == (Holder(12, "vllm", 4 << 20), Holder(11, "trainer", 2 << 20))


def test_a_duplicated_file_descriptor_counts_once(tmp_path: Path) -> None:
    one, two = (XE.format(client=client, address=CARD, size=1024) for client in (7, 8))
    process(tmp_path, 11, "trainer", one, one, two)
    assert holders(CARD, proc=str(tmp_path)) == (Holder(11, "trainer", 2 << 20),)


def test_tiles_are_apart(tmp_path: Path) -> None:
    text = XE.format(client=1, address=CARD, size=1024) + "drm-total-vram1:\t3 MiB\n"
    process(tmp_path, 11, "trainer", text)
    assert [holders(CARD, tiles, str(tmp_path))[0].held >> 20 for tiles in ((0,), (1,), (0, 1), None)] == [1, 3, 4, 4]


def test_i915_and_the_older_key(tmp_path: Path) -> None:
    process(tmp_path, 11, "a", f"drm-driver: i915\ndrm-pdev: {CARD}\ndrm-client-id: 1\ndrm-total-local0: 5 MiB\n")
    process(tmp_path, 12, "b", f"drm-driver: xe\ndrm-pdev: {CARD}\ndrm-client-id: 2\ndrm-memory-vram0: 6 MiB\n")
    assert [holder.held >> 20 for holder in holders(CARD, proc=str(tmp_path))] == [6, 5]


def test_a_driver_that_does_not_tell_is_not_an_empty_card(tmp_path: Path) -> None:
    process(tmp_path, 11, "a", f"drm-driver: i915\ndrm-pdev: {CARD}\ndrm-client-id: 1\ndrm-engine-render: 5 ns\n")
    assert holders(CARD, proc=str(tmp_path)) is None
    assert holders(CARD, proc=str(tmp_path / "absent")) is None
    process(tmp_path, 12, "b", XE.format(client=1, address=CARD, size=0))
    assert holders(CARD, proc=str(tmp_path)) == ()
