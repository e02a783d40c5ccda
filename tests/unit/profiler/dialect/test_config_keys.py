"""Further keys of the speculative config: what passes, what is refused, and in which words."""

from typing import Any

import pytest
from pydantic import ValidationError

from specserve_profiler.contract.request import Method, Speculation, config_fault
from specserve_profiler.dialect.config_keys import KEYS, OWNED, keys_of, refused_config

DRAFTERS: dict[Method, str | None] = {"draft_model": "d", "eagle3": "d", "mtp": None, "ngram": None}


def refused(
    config: dict[str, Any], method: Method = "eagle3", devices: int | None = 2, release: str | None = "0.33.0"
) -> list[tuple[str, str]]:
    speculation = Speculation(method=method, model=DRAFTERS[method], max_tokens=3, config=config)
    return refused_config(speculation, devices, release)


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({}, "eagle3"),
        ({"attention_backend": "FLASH_ATTN", "moe-backend": "triton", "kv_cache_dtype": "fp8"}, "eagle3"),
        ({"draft_tensor_parallel_size": 1, "max_model_len": 4096, "enforce_eager": False}, "draft_model"),
        ({"draft_tensor_parallel_size": 2}, "draft_model"),
        ({"use_heterogeneous_vocab": True, "draft_sample_method": "probabilistic"}, "draft_model"),
        ({"prompt_lookup_max": 5, "prompt_lookup_min": 2, "rejection_sample_method": "block"}, "ngram"),
        ({"index_share_for_mtp_iteration": True}, "mtp"),
        ({"draft_load_config": {"load_format": "dummy"}, "fly_entropy_threshold": 1, "xpress_topc": 0}, "eagle3"),
    ],
)
def test_keys_that_the_method_reads_pass(config: dict[str, Any], method: Method) -> None:
    assert refused(config, method) == []


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("method", "specserve sets it: set speculation.method"),
        ("num_speculative_tokens", "specserve sets it: set speculation.maxTokens"),
        ("num-speculative_tokens", "specserve sets it: set speculation.maxTokens"),
        ("numSpeculativeTokens", "specserve sets it: set speculation.maxTokens"),
        ("NUM_SPECULATIVE_TOKENS", "specserve sets it: set speculation.maxTokens"),
        ("num-speculative-tokens-per-batch-size", "specserve sets it: the table is measured"),
        (
            "enable-adaptive-verification",
            "specserve sets it: profile.verify Full tries it, and it is served where it wins",
        ),
        ("tensor_parallel_size", "vLLM takes draft_tensor_parallel_size instead"),
        ("target_model_config", "vLLM makes it of its other arguments: leave it out"),
        ("modle", "vLLM 0.33 knows no such key; did you mean model?"),
        ("draftTensorParallelSize", "vLLM 0.33 knows no such key; did you mean draft_tensor_parallel_size?"),
        ("prompt_lookup_max", "only method ngram reads it, not eagle3: leave it out"),
        ("suffix_decoding_max_tree_depth", "only method suffix reads it, not eagle3: leave it out"),
    ],
)
def test_a_key_that_may_not_be_there_is_refused_with_the_way_out(key: str, why: str) -> None:
    assert refused({key: 1, "max_model_len": 64}) == [(key.replace("-", "_"), why)]


def test_every_owned_key_is_refused_whatever_its_value_and_spelling() -> None:
    for key in OWNED:
        for spelling in (key, key.replace("_", "-")):
            for value in (None, 1, "x", [[1, 2, 3]]):
                assert refused({spelling: value}) == [(key, OWNED[key])]


def test_what_is_far_from_every_key_is_told_which_there_are() -> None:
    ((key, why),) = refused({"zzz": 1}, release="0.24.0")

    assert key == "zzz"
    assert why.startswith("vLLM 0.24 knows no such key; there are attention_backend, code_revision, disable_padded")
    assert "fly_window_size" not in why


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"enforce_eager": "true"}, 'takes true or false, not "true"'),
        ({"enforce_eager": 1}, "takes true or false, not 1"),
        ({"max_model_len": 0}, "takes a whole number from 1 on, not 0"),
        ({"max_model_len": True}, "takes a whole number from 1 on, not true"),
        ({"max_model_len": 9.5}, "takes a whole number from 1 on, not 9.5"),
        ({"max_model_len": None}, "null says nothing: leave it out"),
        ({"attention_backend": ["FLASH_ATTN"]}, 'takes a text, not ["FLASH_ATTN"]'),
        ({"fly_entropy_threshold": "much"}, 'takes a number, not "much"'),
        ({"draft_load_config": "dummy"}, 'takes an object, not "dummy"'),
        ({"draft_sample_method": "lucky"}, 'takes greedy or probabilistic, not "lucky"'),
        ({"draft_sample_method": []}, "takes greedy or probabilistic, not []"),
        ({"draft_tensor_parallel_size": 3}, "takes 1 or engine.tensorParallelSize (2), not 3"),
        (
            {"rejection_sample_method": "synthetic"},
            "drafts accepted by dice make another text: nothing that is measured so holds for yours",
        ),
    ],
)
def test_a_value_of_another_type_is_refused(config: dict[str, Any], why: str) -> None:
    assert refused(config) == [(*config, why)]


def test_the_release_decides_which_keys_there_are() -> None:
    late = {"kv_cache_dtype": "fp8", "disable_eagle_block_drop": True}

    assert refused(late, release="0.30.1") == []
    assert refused(late, release="0.26.0") == [
        ("disable_eagle_block_drop", "vLLM 0.26 does not know it: it came with 0.30")
    ]
    assert refused({"rejection_sample_method": "fly"}, release="0.33.0") == []
    assert refused({"rejection_sample_method": "fly"}, release="0.32.0") == [
        ("rejection_sample_method", 'takes standard or block, not "fly"')
    ]
    assert refused(late, release=None) == []  # not known: taken for the newest
    assert set(keys_of((0, 24))) == set(KEYS[0, 24])


def test_a_release_that_is_newer_than_the_list_may_know_more() -> None:
    assert refused({"draft_attention_heads": 4, "max_model_len": 64}, release="0.40.0") == []
    assert refused({"atention_backend": "X"}, release="0.40.0") == [
        ("atention_backend", "vLLM 0.40 knows no such key; did you mean attention_backend?")
    ]
    assert refused({"draft_attention_heads": 4}, release=None) != []


def test_devices_of_the_drafter_are_left_to_the_engine_where_its_own_are_not_known() -> None:
    assert refused({"draft_tensor_parallel_size": 3}, devices=None) == []


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"a b": 1}, "'a b' is no key: give names such as attention_backend"),
        ({"a.b": 1}, "'a.b' is no key"),
        ({"": 1}, "'' is no key"),
        ({"k" * 65: 1}, "is no key"),
        ({"max_model_len": 1, "max-model-len": 2}, "one key is there twice, with dashes and with underscores"),
        ({"quantization": "\ud800"}, "its values must be JSON"),
        ({"fly_entropy_threshold": float("nan")}, "its values must be JSON"),
        ({"quantization": {1, 2}}, "its values must be JSON"),
        ({f"k{n}": 1 for n in range(33)}, "it has 33 keys and"),
        ({"quantization": "x" * 3000}, "and 3020 bytes, at most 32 and 2048 are taken"),
        ({"max_model_len": 10**5000}, "its values must be JSON"),
    ],
)
def test_what_no_engine_could_take_is_no_request(config: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected.replace("(", r"\(")):
        Speculation(method="ngram", max_tokens=3, config=config)


def test_a_value_nested_without_end_is_refused_and_not_followed() -> None:
    with pytest.raises(ValidationError, match="its values must be JSON"):
        Speculation(method="ngram", max_tokens=3, config={"draft_load_config": nested(100_000)})
    with pytest.raises(ValidationError, match="its values are nested more than 8 deep"):
        Speculation(method="ngram", max_tokens=3, config={"draft_load_config": nested(300)})
    for depth in (9, 8):
        assert (config_fault({"draft_load_config": nested(depth)}) is None) == (depth == 8)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value
