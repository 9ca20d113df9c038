"""The sentence pairs that the offline example ships with are usable as a data set."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "examples" / "data" / "sentence_pairs.tsv"
COLUMNS = ["split", "label", "sentence1", "sentence2"]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    with FILE.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        assert reader.fieldnames == COLUMNS
        return list(reader)


def words(sentence: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9']+", sentence.lower()))


def overlap(row: dict[str, str]) -> float:
    first, second = words(row["sentence1"]), words(row["sentence2"])
    return len(first & second) / len(first | second)


def test_there_are_enough_pairs_with_both_labels(rows: list[dict[str, str]]) -> None:
    """At least 400 pairs, and in each split as many paraphrases as others."""
    assert len(rows) >= 400
    counts = Counter((row["split"], row["label"]) for row in rows)
    assert set(counts) == {(split, label) for split in ("train", "validation") for label in "01"}
    for split in ("train", "validation"):
        assert counts[split, "0"] == counts[split, "1"] >= 50


def test_each_row_is_two_different_whole_sentences(rows: list[dict[str, str]]) -> None:
    """No field is empty, cut off, padded or equal to its partner."""
    for row in rows:
        assert set(row) == set(COLUMNS)
        for name in ("sentence1", "sentence2"):
            assert re.fullmatch(r"[A-Z0-9].*[.!?]", row[name]), row
            assert len(words(row[name])) >= 3, row
        assert row["sentence1"] != row["sentence2"]


def test_no_pair_is_there_twice(rows: list[dict[str, str]]) -> None:
    """A pair of sentences occurs once, whichever comes first."""
    pairs = Counter(frozenset((row["sentence1"], row["sentence2"])) for row in rows)
    assert [pair for pair, count in pairs.items() if count > 1] == []


def test_validation_holds_no_sentence_like_one_of_training(rows: list[dict[str, str]]) -> None:
    """No validation sentence shares half of its words with a training sentence."""
    training = {words(row[name]) for row in rows if row["split"] == "train" for name in ("sentence1", "sentence2")}
    validation = {words(row[name]) for row in rows if row["split"] == "validation" for name in COLUMNS[2:]}
    close = [(v, t) for v in validation for t in training if len(v & t) / len(v | t) >= 0.5]
    assert close == []


def test_neither_label_can_be_told_by_word_overlap_being_high(rows: list[dict[str, str]]) -> None:
    """There are hard negatives (much overlap, other meaning) and paraphrases with much and with little overlap."""
    negative = sorted(overlap(row) for row in rows if row["label"] == "0")
    positive = sorted(overlap(row) for row in rows if row["label"] == "1")
    assert negative[len(negative) // 2] > 0.5
    assert negative[0] < 0.1
    assert positive[0] < 0.1
    assert positive[-1] > 0.8
