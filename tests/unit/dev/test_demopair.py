"""The demo pair's language, prompts and verify loop: pure, so without torch."""

import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from demopair import cores
from demopair.cache import built_pair, cache_dir
from demopair.corpus import log, prompts, text_of, texts
from demopair.grammar import HOME, NEIGHBOUR
from demopair.verify_loop import Step, acceptance_rates, steps

DEV = Path(__file__).parents[3] / "dev"


@pytest.fixture
def rng() -> random.Random:
    return random.Random(0)  # noqa: S311 (nothing secret here)


def test_corpus_is_the_same_at_every_run() -> None:
    assert next(texts(HOME)).startswith(
        "Log 967. 5 to go: the clerk carries a hollow mirror near Carrow carefully, while a horse waits. 4 to go: the"
    )
    assert list(islice(texts(HOME), 5)) == list(islice(texts(HOME), 5))


def test_first_prompts_are_these() -> None:
    assert prompts().profile[0].text == (
        "Log 969. 15 to go: the tailor asks for a folded hammer beyond Penrose outdoors, "
        "while a sparrow sings. 14 to go:"
    )
    assert prompts().heldout[0].text == (
        "Log 675. 9 to go: the doctor keeps a hollow kettle to Brindle carefully, "
        "while a hare stops. 8 to go: the tailor"
    )


def test_prompts_are_distinct_and_the_two_sets_disjoint() -> None:
    sets = prompts()
    profile, heldout = ({prompt.text for prompt in them} for them in (sets.profile, sets.heldout))
    assert len(profile) == len(heldout) == 384
    assert not profile & heldout


def test_prompts_are_cut_at_many_lengths() -> None:
    lengths = [len(prompt.text.split()) for prompt in prompts().profile]
    assert min(lengths) >= 13
    assert max(lengths) <= 36
    assert len(set(lengths)) > 15


def test_logs_count_down_to_one_and_no_entry_comes_twice(rng: random.Random) -> None:
    for _ in range(50):
        entries = text_of(log(HOME, rng)).split(". ")[1:]
        numbers, sentences = zip(*(entry.split(" to go: ") for entry in entries), strict=True)
        assert [int(number) for number in numbers] == list(range(len(entries), 0, -1))
        assert len(set(sentences)) == len(entries)


def test_what_is_left_of_a_log_after_a_prompt_is_100_to_160_words_in_the_mean(rng: random.Random) -> None:
    left = [len(log(HOME, rng)) - 27 for _ in range(500)]
    assert 100 < sum(left) / len(left) < 160
    assert max(left) > 250


def test_towns_agree_on_an_eighth_of_their_facts() -> None:
    for home, neighbour in zip(HOME.facts, NEIGHBOUR.facts, strict=True):
        assert sum(a == b for a, b in zip(home, neighbour, strict=True)) == 2
        assert sorted(home) == sorted(neighbour) == list(range(16))


def test_a_drafter_that_knows_the_neighbour_town_accepts_as_wanted_early_and_late(rng: random.Random) -> None:
    taken = []
    for _ in range(600):
        agree = [not word.local for word in log(HOME, rng)[27:]]
        taken += list(steps(agree, 5))
    wanted = pytest.approx((0.66, 0.39, 0.29, 0.16, 0.15), abs=0.02)
    assert acceptance_rates(taken, 5) == wanted
    assert acceptance_rates([step for step in taken if step.start >= 160], 5) == wanted


def test_verify_loop_takes_accepted_drafts_and_one_token_more() -> None:
    #        0      1     2     3      4     5     6      7     8
    agree = [False, True, True, False, True, True, False, True, True]
    assert list(steps(agree, 2)) == [Step(1, 2), Step(4, 2), Step(7, 2)]
    assert list(steps(agree, 3)) == [Step(1, 2), Step(4, 2)]
    assert list(steps([True], 1)) == []


def test_acceptance_rates_are_unconditional() -> None:
    assert acceptance_rates([Step(1, 0), Step(2, 1), Step(4, 3), Step(8, 3)], 3) == (0.75, 0.5, 0.5)
    with pytest.raises(ValueError, match="shorter than Kmax"):
        acceptance_rates([], 3)


def test_folder_is_below_the_cache_that_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSERVE_CACHE", str(tmp_path))
    assert cache_dir().parent == tmp_path
    assert cache_dir().name.startswith("demopair-")
    with pytest.raises(FileNotFoundError, match="python -m demopair build"):
        built_pair()


def test_path_is_told_without_torch(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "demopair", "path"]
    environment = {"PYTHONPATH": str(DEV), "SPECSERVE_CACHE": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).parent == tmp_path
    assert "torch" not in done.stderr


@pytest.mark.parametrize(
    ("count", "busy", "threads"), [(2, 0.02, 2), (2, 0.5, 1), (2, 1.0, 1), (1, 0.0, 1), (8, 0.13, 7), (16, 0.97, 1)]
)
def test_a_training_leaves_busy_cores_alone(count: int, busy: float, threads: int) -> None:
    assert cores.threads(count, busy) == threads
