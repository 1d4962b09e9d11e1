"""Each obstacle on verl's model side: without the shim's patches for it, and with them, on a simulated device."""

from __future__ import annotations

import re

import pytest
from model_runs import release, report

INSTALLED = "0.9.1"
RELEASES = [
    pytest.param("0.7.1"),
    pytest.param("0.8.0", marks=pytest.mark.slow),
    pytest.param("0.9.0", marks=pytest.mark.slow),
    pytest.param(INSTALLED),
]

#: What goes wrong without the patches, by case. The others either give an answer or are looked at by themselves.
FAILURES = {
    "entropy": r"InductorError: RuntimeError: 0 active drivers \(\[\]\)",
    "padding": "ModuleNotFoundError: No module named 'flash_attn'",
    "log_probs_from_padded": "ModuleNotFoundError: No module named 'flash_attn'",
    "log_probs_from_packed": "UnboundLocalError: cannot access local variable 'pad_input'",
    "vision_attention_qwen2_vl": "NameError: name '_flash_supports_window_size' is not defined",
    "vision_attention_glm4v": "NameError: name '_flash_supports_deterministic' is not defined",
    "default_attention": "ImportError: .*(kernels|FlashAttention2)",
}
CASES = (
    *FAILURES,
    *("default_of_the_checkpoint", "chosen_attention", "chosen_flash_attention", "critic", "critic_that_cannot_load"),
    *("log_probs_of_loop", "remove_padding_kept", "remove_padding_with_a_leak", "sequence_parallel", "figures"),
    *("log_probs_on_random_batches", "memory", "determinism", "checkpoint_in_host_memory", "synchronized_copy"),
)
STOCK = (*FAILURES, "remove_padding_with_a_leak", "figures", "checkpoint_in_host_memory")


def folders(version: str) -> tuple[str, ...]:
    return () if version == INSTALLED else (release("verl", version),)


def patched(checkpoints, version: str):
    legacy = ("entropy_by_a_legacy_actor",) if version == "0.7.1" else ()
    answers = report("cases.py", checkpoints, *CASES, *legacy, folders=folders(version))
    assert answers["verl"] == version
    return answers


@pytest.fixture(params=RELEASES)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


def test_without_the_patches_each_of_them_fails(checkpoints, version):
    legacy = ("entropy_by_a_legacy_actor",) if version == "0.7.1" else ()
    stock = report("cases.py", checkpoints, *STOCK, *legacy, folders=folders(version), shim=False)
    assert stock["verl"] == version
    for case, text in FAILURES.items():
        if case == "padding" and version == INSTALLED:  # this release has a fallback
            continue
        assert re.match(text, str(stock[case])), (case, stock[case])
    assert stock["remove_padding_with_a_leak"] == [True, True, True, []]  # it leaks and nobody says so
    assert stock["figures"] == ["149.7", "inf", "inf", "inf", "inf", "149.7"]
    assert stock["checkpoint_in_host_memory"] is False
    if legacy:
        assert stock["entropy_by_a_legacy_actor"].startswith("InductorError: RuntimeError: 0 active drivers")


def test_without_the_patch_the_critic_blames_trl(checkpoints, version):
    # A start of its own: where flash attention failed to load once, transformers lets the next model through.
    stock = report("cases.py", checkpoints, "critic", folders=folders(version), shim=False)
    assert re.match(r"RuntimeError: model\(.*\) is not a value head model, please install trl", stock["critic"])


def test_a_model_gets_sdpa_where_nobody_chose(checkpoints, version):
    answers = patched(checkpoints, version)
    assert answers["default_attention"] == ["sdpa", {}, False]  # and neither config shows a trace of it


def test_a_checkpoint_may_name_an_attention_that_can_run(checkpoints, version):
    assert patched(checkpoints, version)["default_of_the_checkpoint"] == ["eager", "sdpa"]


def test_a_choice_is_left_alone_and_one_that_cannot_work_says_what_will(checkpoints, version):
    answers = patched(checkpoints, version)
    assert answers["chosen_attention"] == ["eager", "sdpa"]
    assert re.match(
        "AttentionChoiceError: .*attn_implementation.*=flash_attention_2 cannot run here.*Use sdpa or eager",
        answers["chosen_flash_attention"],
    )


def test_the_critic_gets_the_chosen_attention_without_trl(checkpoints, version):
    name = "Qwen2ForTokenClassification"
    assert patched(checkpoints, version)["critic"] == [name, "sdpa", name, "sdpa", name, "eager"]


def test_a_critic_that_cannot_load_says_why(checkpoints, version):
    text = patched(checkpoints, version)["critic_that_cannot_load"]
    assert re.search(r"please install trl.* transformers could not load it with a value head: OSError: ", text)


def test_entropy_runs_without_triton_for_xpu(checkpoints, version):
    answers = patched(checkpoints, version)
    for case in ("entropy", "entropy_by_a_legacy_actor"):
        assert answers.get(case, [1.3862943649291992] * 3) == pytest.approx([1.3862944] * 3)  # log 4


def test_padding_goes_and_comes_back(checkpoints, version):
    packed, offsets, dtype, longest, used, back, gradient, same = patched(checkpoints, version)["padding"]
    assert (packed, offsets, dtype) == ([1, 2, 8, 9, 10, 11], [0, 2, 2, 6], "torch.int32")
    assert (longest, used, same) == (4, [2, 0, 4], True)
    assert back == [0, 1, 2, 0, 0, 0, 0, 0, 8, 9, 10, 11]
    assert gradient == [0, 2, 2, 0, 0, 0, 0, 0, 2, 2, 2, 2]


def test_packed_log_probabilities_equal_a_loop(checkpoints, version):
    answers = patched(checkpoints, version)
    loop = answers["log_probs_of_loop"]
    for case in ("log_probs_from_padded", "log_probs_from_packed"):
        for row, expected in zip(answers[case], loop, strict=True):
            assert row == pytest.approx(expected, abs=1e-6)


def test_packed_log_probabilities_of_random_batches_equal_a_loop_with_gradients(checkpoints, version):
    answer = patched(checkpoints, version)["log_probs_on_random_batches"]
    assert isinstance(answer, list), answer
    tried, fewest, most = answer
    assert (tried >= 40, fewest, most >= 12) == (True, 0, True)  # batches without any token are among them


@pytest.mark.parametrize("model", ["qwen2_vl", "glm4v"])
def test_own_attention_of_vision_models_equals_attention_of_each_sequence(checkpoints, version, model):
    assert patched(checkpoints, version)[f"vision_attention_{model}"] < 2e-6


def test_padding_is_removed_only_where_sequences_stay_apart(checkpoints, version):
    answers = patched(checkpoints, version)
    assert answers["remove_padding_kept"] == [True, True]
    first, config, second, warnings = answers["remove_padding_with_a_leak"]
    assert (first, config, second) == (False, False, False)
    assert len(warnings) == 1
    assert "packed sequences would see each other: its outputs differ by" in warnings[0]


def test_sequence_parallelism_without_flash_attention_is_refused(checkpoints, version):
    text = patched(checkpoints, version)["sequence_parallel"]
    assert re.match("SequenceParallelError: ulysses_sequence_parallel_size=2 needs a flash attention", text)
    assert "Set ulysses_sequence_parallel_size=1" in text


def test_mfu_is_finite_and_no_intel_card_is_taken_for_another(checkpoints, version):
    assert patched(checkpoints, version)["figures"] == ["inf", "98.5", "838.8608", "98.5", "98500.0", "149.7"]


def test_memory_metrics_read_the_current_device(checkpoints, version):
    assert patched(checkpoints, version)["memory"] == ["64", 64, 1, True]


def test_full_determinism_seeds_the_device(checkpoints, version):
    assert patched(checkpoints, version)["determinism"] is True


def test_checkpoints_are_gathered_in_host_memory(checkpoints, version):
    assert patched(checkpoints, version)["checkpoint_in_host_memory"] is True


def test_older_tensordict_waits_for_its_copies(checkpoints):
    older = (release("tensordict", "0.8.3"),)
    stock = report("cases.py", checkpoints, "synchronized_copy", folders=older, shim=False)
    assert stock["synchronized_copy"] == 0
    assert report("cases.py", checkpoints, "synchronized_copy", folders=older)["synchronized_copy"] == 1
    assert patched(checkpoints, INSTALLED)["synchronized_copy"] == 1  # 0.10 waits by itself, and only once


def test_packed_and_separate_forward_agree(checkpoints):
    answers = report("cases.py", checkpoints, "packed_against_separate", "offload_where_addresses_overflow")
    differences = answers["packed_against_separate"]
    assert set(differences) == {"Qwen2", "Qwen3", "Llama"}
    assert max(differences.values()) < 1e-5, differences
    stock, ours, same, device = answers["offload_where_addresses_overflow"]
    assert stock.startswith("OverflowError")
    assert (set(ours), same, device) == ({"cpu"}, True, "xpu")
