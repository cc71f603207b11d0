"""Trials of a library on one schema, and the tables of them."""

from __future__ import annotations

import base64
import multiprocessing
import resource
from pathlib import Path

import pytest

from load.schemas import compare, trial
from load.schemas.libraries import LLGuidance
from load.schemas.suites import Case, Instance
from load.schemas.trial import Trial, try_case
from load.schemas.verdicts import reasons_in
from load.schemas.vocabularies import Encoder, Vocabulary, of_ranks


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    tokens = [bytes([byte]) for byte in range(256)] + [b'{"', b'": ', b"12"]
    file: Path = tmp_path_factory.mktemp("ranks") / "bytes.tiktoken"
    file.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % id for id, token in enumerate(tokens)))
    return of_ranks(file)


def test_a_file_of_ranks_has_one_special_token(vocabulary: Vocabulary) -> None:
    assert (vocabulary.name, vocabulary.size, vocabulary.eos) == ("bytes", 260, 259)
    assert vocabulary.ordinary()[-3:] == [b'": ', b"12", b""]


def test_text_is_encoded_by_its_longest_tokens(vocabulary: Vocabulary) -> None:
    ids = Encoder(vocabulary.ordinary()).encode('{"a": 12}')
    assert [vocabulary.tables.bytes_of(id) for id in ids] == [b'{"', b"a", b'": ', b"12", b"}"]
    with pytest.raises(ValueError, match="no token spells"):
        Encoder([b"a"]).encode("b")


def test_a_trial_counts_what_is_accepted(vocabulary: Vocabulary) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    instances = [Instance({"b": 1, "a": 12}, True), Instance({"a": "x"}, False)]
    wrong = [Instance({"b": 1}, True), Instance({"a": 1}, False)]  # the labels are wrong, so the grammar seems to be
    library, encoder = LLGuidance(vocabulary), Encoder(vocabulary.ordinary())
    done = try_case(library, encoder, Case("", schema, (*instances, *wrong)))
    assert (done.refused, done.valid, done.wrongly_refused, done.invalid) == ("", 2, 1, 2)
    assert done.wrongly_accepted == ['{"a": 1}']
    assert len(done.masks_s) > 10
    assert done.compile_s > 0


def test_a_refused_schema_has_its_reasons(vocabulary: Vocabulary) -> None:
    done = try_case(LLGuidance(vocabulary), Encoder(vocabulary.ordinary()), Case("", {"not": {}, "uniqueItems": True}))
    assert reasons_in(done.refused) == ["keyword not", "keyword uniqueItems"]
    assert reasons_in("[16:43:09] /a/b.cc:4950: Schema 'false' cannot accept 1 value\n") == [
        "Schema … cannot accept … value"
    ]


class Endless(LLGuidance):
    def compile(self, schema):
        while True:
            pass


class Dies(LLGuidance):
    def compile(self, schema):
        raise SystemExit


def test_a_trial_that_crashes_or_takes_too_long_has_failed(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = {"llguidance": LLGuidance, "endless": Endless, "dies": Dies}
    monkeypatch.setattr(trial, "LIBRARIES", libraries)
    monkeypatch.setattr(
        trial, "CONTEXT", multiprocessing.get_context("fork")
    )  # so that the process knows these libraries
    monkeypatch.setattr(trial, "MEMORY", resource.RLIM_INFINITY)  # the memory of this process counts in a fork of it
    cases = [Case("", {"type": "null"}, (Instance(None, True),))] * 2
    assert [done.failed for done in trial.run("llguidance", vocabulary, cases, 60)] == ["", ""]
    assert [done.failed for done in trial.run("endless", vocabulary, cases[:1], 0.05)] == ["too long"]
    assert [done.failed for done in trial.run("dies", vocabulary, cases, 60)] == ["crashed", "crashed"]


def test_tables_count_trials() -> None:
    done = [
        Trial(compile_s=0.001, masks_s=[1e-6, 3e-6], valid=2, invalid=2, wrongly_accepted=["1", "2"]),
        Trial(refused="Unimplemented keys: [\"not\", \"if\"]"),
        Trial(failed="too long"),
    ]  # fmt: skip
    assert compare.times_of(done) == ["1", "1.0", "1.0", "2", "2", "3", "3", "3"]
    assert compare.times_of(done[1:]) == ["0", *["-"] * 7]
    cases = [Case("", {})] * 3
    assert compare.counts_of(cases, done) == [3, 1, 1, 0, 1, 2, 0, 2, 2, 1]
    assert compare.reasons_of(done) == [("keyword not", 1), ("keyword if", 1)]
