"""Engine arguments: deployed as measured, and no flag that specserve sets comes back by another spelling."""

import json

import pytest

from specserve_profiler.contract.profile import Arm, Decision, Row
from specserve_profiler.contract.request import Engine, Speculation
from specserve_profiler.dialect import render
from specserve_profiler.dialect.arguments import owned_flags, refused_arguments

ENGINE = Engine(args=("--gpu-memory-utilization=0.9",), max_num_seqs=32, max_model_len=1024)
DRAFT = Speculation(method="draft_model", model="org/draft", revision="abc", max_tokens=5)
ROWS = (Row(first=1, last=8, k=4), Row(first=9, last=32, k=1))


def decision(verdict: str, static_k: int = 2) -> Decision:
    return Decision(verdict=verdict, reason="because", table=ROWS, static_k=static_k)  # type: ignore[arg-type]


def test_model_is_positional_after_serve_and_user_arguments_come_last() -> None:
    config = render.speculative_config(DRAFT, decision("Dynamic"))

    arguments = render.serve_arguments("org/target", "main", ENGINE, config, host="127.0.0.1", port=8123)

    assert arguments == (
        "vllm",
        "serve",
        "org/target",
        "--revision=main",
        "--host=127.0.0.1",
        "--port=8123",
        "--max-num-seqs=32",
        "--max-model-len=1024",
        "--tensor-parallel-size=1",
        (
            '--speculative-config={"method":"draft_model","model":"org/draft","revision":"abc",'
            '"num_speculative_tokens":4,"num_speculative_tokens_per_batch_size":[[1,8,4],[9,32,1]]}'
        ),
        "--gpu-memory-utilization=0.9",
    )


def test_model_is_a_flag_for_the_module_and_a_config_may_be_a_reference() -> None:
    engine = ENGINE.model_copy(update={"command": ("python", "-m", "vllm.entrypoints.openai.api_server"), "args": ()})

    arguments = render.serve_arguments("/models/target", None, engine, "$(TABLE)", extra=("--scheduler-cls=x.y",))

    assert arguments[:4] == ("python", "-m", "vllm.entrypoints.openai.api_server", "--model=/models/target")
    assert arguments[-2:] == ("--speculative-config=$(TABLE)", "--scheduler-cls=x.y")
    assert not any(argument.startswith("--revision") for argument in arguments)


def test_static_serves_one_k_and_none_serves_without_speculation() -> None:
    assert render.speculative_config(DRAFT, decision("Static")) == {
        "method": "draft_model",
        "model": "org/draft",
        "revision": "abc",
        "num_speculative_tokens": 2,
    }
    assert render.speculative_config(DRAFT, decision("None")) is None
    assert render.static_config(Speculation(method="ngram", max_tokens=3), 3) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
    }
    assert render.static_config(DRAFT, 0) is None


@pytest.mark.parametrize(("max_num_seqs", "last"), [(256, [6, 256, 0]), (2, [6, 6, 0])])
def test_measured_engine_is_booted_with_kmax_and_names_every_k(max_num_seqs: int, last: list[int]) -> None:
    config = render.measuring_config(DRAFT, max_num_seqs)

    assert config["num_speculative_tokens"] == 5
    rows = config["num_speculative_tokens_per_batch_size"]
    assert [row[2] for row in rows] == [5, 4, 3, 2, 1, 0]
    assert [row[0] for row in rows] == [1, 2, 3, 4, 5, 6] and rows[-1] == last
    assert json.loads(render.config_text(config)) == config


@pytest.mark.parametrize(
    "arguments",
    [
        ["--speculative-config", "{}"],
        ["--speculative-config={}"],
        ["--speculative_config={}"],
        ["-sc", "{}"],
        ["-s", "{}"],
        ["-sc={}"],
        ["-sc.model=x"],
        ["--speculative-config.model", "x"],
        ["--speculative_config.num_speculative_tokens=3"],
        ["--speculative-config.rows+=1"],
        ["--specul={}"],
        ["--spec-tokens=3"],
        ["--spec_method=ngram"],
        ["--spec-mo", "x"],
        ["--config", "x.yaml"],
        ["--config=x.yaml"],
        ["--model=other"],
        ["--model", "other"],
        ["--revision=x"],
        ["--rev=x"],
        ["--max-num-seqs=1"],
        ["--max_num_seqs", "1"],
        ["--max-num-s=1"],
        ["--max-model-len=1"],
        ["--tensor-parallel-size=2"],
        ["-tp", "2"],
        ["-t=2"],
        ["--scheduler-cls=x"],
        ["--scheduler_cls", "x"],
        ["--port=1"],
        ["--host", "::"],
        ["--api-key", "secret"],
        ["--uds=/x"],
        ["--ssl-keyfile=x"],
        ["--headless"],
        ["--grpc"],
        ["--data-parallel-size=2"],
        ["--data_parallel_size", "4"],
        ["-dp", "2"],
        ["-dp=2"],
        ["-dpl", "2"],
        ["--data-parallel-rank=0"],
        ["--decode-context-parallel-size=2"],
        ["-dcp", "2"],
        ["--pipeline-parallel-size", "2"],
        ["-pp=2"],
        ["--"],
        ["other-model"],
    ],
)
def test_every_spelling_of_an_owned_flag_is_refused(arguments: list[str]) -> None:
    refused = refused_arguments(["--dtype=bfloat16", *arguments] if arguments[0].startswith("-") else arguments)

    assert [argument for argument, _ in refused] == [arguments[0]]
    assert len(refused[0][1]) > 20


def test_a_refusal_names_the_field_to_set() -> None:
    [(argument, why)] = refused_arguments(["--max_num_s", "4"])

    assert argument == "--max_num_s"
    assert why == "specserve sets --max-num-seqs itself: set engine.maxNumSeqs"


def test_the_users_own_flags_pass() -> None:
    arguments = [
        "--gpu-memory-utilization=0.9",
        "--max-num-batched-tokens",
        "8192",
        "--model-loader-extra-config.x=1",
        "--model-impl=vllm",
        "--config-format",
        "auto",
        "--served-model-name",
        "chat",
        "--data-parallel-size=1",
        "--seed=-1",
        "--seed",
        "-1",
        "-dc={}",
        "-O3",
        "-q",
        "fp8",
        "--no-enable-prefix-caching",
        "--hf-overrides",
        '{"port": 1}',
        "--revision-like=1",
    ]

    assert refused_arguments(arguments) == []


def test_a_flag_and_its_value_in_one_argument_are_refused() -> None:
    arguments = ["--gpu-memory-utilization 0.9", '--compilation-config={"level": 3}', "--served-model-name", "a name"]

    assert refused_arguments(arguments) == [
        ("--gpu-memory-utilization 0.9", "a flag and its value are two arguments, or one with = between them")
    ]


@pytest.mark.parametrize(
    ("arguments", "stray"),
    [
        (["--enforce-eager", "x"], ["x"]),
        (["--enforce_eager", "x"], ["x"]),
        (["--enforce", "x"], ["x"]),
        (["--no-enable-prefix-caching", "true", "--dtype=half"], ["true"]),
        (["--enable-lora", "-5"], ["-5"]),
        (["--dtype", "half", "x", "y"], ["x", "y"]),
        (["--dtype=half", "x"], ["x"]),
        (["--served-model-name=a", "b"], ["b"]),
        (["-O3", "x"], ["x"]),
        (["-O", "3", "x"], ["x"]),
        (["-ep", "x"], ["x"]),
        (["--hf-overrides.a", "b", "c"], ["c"]),
        (["--served-model-name", "a", "b", "--cudagraph-capture-sizes", "1", "2", "4"], []),
        (["--enable-lora", "--lora-modules", "a=b", "c=d"], []),
        (["--a-flag-of-a-later-version", "x"], []),
    ],
)
def test_what_vllm_would_take_for_the_model_is_refused(arguments: list[str], stray: list[str]) -> None:
    refused = refused_arguments(arguments)

    assert [argument for argument, _ in refused] == stray
    assert all("vLLM would take it for the model, whatever model.name says" in why for _, why in refused)


def test_owned_flags_are_told() -> None:
    assert owned_flags()["--max-num-seqs"] == "set engine.maxNumSeqs"
    assert {"-sc", "-tp", "--port", "--config"} <= set(owned_flags())


def test_a_table_is_rendered_for_engines_that_know_tables() -> None:
    config = render.speculative_config(DRAFT, decision("Dynamic"), "0.24.0")

    assert config is not None and config["num_speculative_tokens_per_batch_size"] == [[1, 8, 4], [9, 32, 1]]
    assert render.speculative_config(DRAFT, decision("Static"), "0.23.0") is not None
    with pytest.raises(ValueError, match=r"vLLM 0\.23\.1 knows no tables: use 0\.24 or newer"):
        render.speculative_config(DRAFT, decision("Dynamic"), "0.23.1")


def test_every_kind_of_arm_has_its_config() -> None:
    base = {"method": "draft_model", "model": "org/draft", "revision": "abc"}

    assert render.arm_config(DRAFT, Arm(kind="None")) is None
    assert render.arm_config(DRAFT, Arm(kind="Static", k=3)) == {**base, "num_speculative_tokens": 3}
    assert render.arm_config(DRAFT, Arm(kind="Static", k=0)) is None
    assert render.arm_config(DRAFT, Arm(kind="Table", rows=ROWS)) == {
        **base,
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 32, 1]],
    }
    adaptive = {**base, "num_speculative_tokens": 5, "enable_adaptive_verification": True}
    assert render.arm_config(DRAFT, Arm(kind="Adaptive")) == adaptive
    assert render.arm_config(DRAFT, Arm(kind="Adaptive", k=5)) == adaptive
    assert render.speculative_config(DRAFT, decision("Adaptive")) == adaptive


def test_every_arm_that_speculates_has_the_further_keys_as_it_is_measured_with_them() -> None:
    speculation = DRAFT.model_copy(update={"config": {"attention_backend": "FLASH_ATTN", "enforce_eager": True}})
    further = {"attention_backend": "FLASH_ATTN", "enforce_eager": True}

    measured = render.measuring_config(speculation, 32)
    served = [
        render.arm_config(speculation, arm)
        for arm in (Arm(kind="Table", rows=ROWS), Arm(kind="Static", k=2), Arm(kind="Adaptive"))
    ]

    for config in (measured, *served):
        assert config is not None and config.items() >= further.items()
    assert served[1] == {"method": "draft_model", "model": "org/draft", "revision": "abc", **further,
                         "num_speculative_tokens": 2}  # fmt: skip
    assert render.arm_config(speculation, Arm(kind="None")) is None


def test_a_further_key_never_takes_the_place_of_what_was_decided() -> None:
    speculation = DRAFT.model_copy(
        update={"config": {"num_speculative_tokens": 9, "model": "x", "enable_adaptive_verification": True}}
    )

    assert render.static_config(speculation, 2) == {
        "method": "draft_model",
        "model": "org/draft",
        "revision": "abc",
        "num_speculative_tokens": 2,
    }


def test_capture_sizes_are_arguments_of_their_own_before_the_users() -> None:
    arguments = render.serve_arguments("m", None, ENGINE, None, capture_sizes=(40, 5, 10, 5), extra=("--x=y",))

    assert arguments[-6:] == (
        "--cudagraph-capture-sizes",
        "5",
        "10",
        "40",
        "--x=y",
        "--gpu-memory-utilization=0.9",
    )
    assert "--cudagraph-capture-sizes" not in render.serve_arguments("m", None, ENGINE, None)


@pytest.mark.parametrize(
    "args",
    [
        ["--cudagraph-capture-sizes", "1", "2"],
        ["--cudagraph_capture_sizes=1"],
        ["--cudagraph-cap", "1"],
        ["--max-cudagraph-capture-size=64"],
        ["--max_cudagraph_capture_size", "64"],
        ["--compilation-config", '{"cudagraph_capture_sizes": [1, 2]}'],
        ['--compilation_config={"max_cudagraph_capture_size": 8, "mode": 3}'],
        ['-cc={"cudagraph_capture_sizes": [1]}'],
        ["-cc.cudagraph_capture_sizes", "[1,2]"],
        ["--compilation-config.cudagraph_capture_sizes+=4"],
        ["--compilation-config.max-cudagraph-capture-size=8"],
        ['-O{"cudagraph_capture_sizes": [1.0]}'],
        ["-O", '{"cudagraph_capture_sizes": [1]}'],
        ["-O.cudagraph_capture_sizes=[1]"],
    ],
)
def test_captured_sizes_that_the_user_chose_hold_in_any_spelling(args: list[str]) -> None:
    assert render.sets_capture_sizes(["--dtype=auto", *args])
    assert render.capture_arguments((1, 2), args) == ()


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["-O3"],
        ["-O", "2"],
        ["--compilation-config", '{"cudagraph_mode": "FULL"}'],
        ["-cc.mode=3"],
        ["--compilation-config", "no JSON"],
        ["--compilation-config.pass_config", '{"cudagraph_capture_sizes": 1}'],
        ["--max-model-len=1"],
    ],
)
def test_other_arguments_leave_the_captured_sizes_to_the_profile(args: list[str]) -> None:
    assert not render.sets_capture_sizes(args)
    assert render.capture_arguments((2, 1), args) == ("--cudagraph-capture-sizes", "1", "2")
