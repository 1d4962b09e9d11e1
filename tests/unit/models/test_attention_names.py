"""Names of attention implementations, and where they are read from."""

from __future__ import annotations

import json

import pytest

from xpu_shim.models import attention, packing


@pytest.mark.parametrize("name", ["flash_attention_2", "flash_attention_3", "flash_attention_4"])
def test_flash_names(name):
    assert attention.is_flash(name)
    assert packing.is_flash_backend(name)


@pytest.mark.parametrize("name", ["sdpa", "eager", "flex_attention", None, "flash_attention_2x", 2])
def test_other_names(name):
    assert not attention.is_flash(name)
    assert not packing.is_flash_backend(name)


def test_a_hub_kernel_is_a_flash_backend():
    assert packing.is_flash_backend("kernels-community/flash-attn2")
    assert not packing.is_flash_backend("kernels-community/paged-attention")


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ({}, None),
        ({"attn_implementation": "eager"}, "eager"),
        ({"_attn_implementation": "sdpa"}, "sdpa"),
        ({"attn_implementation": {"text": "sdpa"}}, None),
    ],
)
def test_what_a_checkpoint_names(tmp_path, content, name):
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert attention.named_in_file(str(tmp_path)) == name


def test_a_checkpoint_without_a_readable_config_names_nothing(tmp_path):
    assert attention.named_in_file(str(tmp_path)) is None
    assert attention.named_in_file(None) is None
    (tmp_path / "config.json").write_text("{")
    assert attention.named_in_file(str(tmp_path)) is None


def test_the_default_is_answered_and_not_held():
    overrides = attention.WithDefault({"rope_theta": 1}, "sdpa")
    assert overrides.get("attn_implementation", "flash_attention_2") == "sdpa"
    assert dict(overrides) == {"rope_theta": 1}
    assert overrides.get("other", 3) == 3
    assert attention.WithDefault({"attn_implementation": "eager"}, "sdpa").get("attn_implementation") == "eager"
