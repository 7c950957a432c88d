# SPDX-License-Identifier: Apache-2.0
"""Shared by all tests: one thread and seed, no hub, a tiny backbone folder, the public data where present."""

from __future__ import annotations

import gc
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, settings

from fault_rows import fault_rows

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

SEED = 271828
"""None that a test would choose: what it makes without a seed must not equal what it makes with one."""

# The same examples in every run; `pytest --hypothesis-profile search` looks for new ones.
settings.register_profile("repository", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, print_blob=True)
# A mutant has failed with its first example; looking for a smaller one takes minutes.
settings.register_profile(
    "mutation", derandomize=True, deadline=None, phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("repository")


def _leave_to_the_system(descriptor: int) -> None:
    """Stand in for `os.fsync`, which waits for the disk: no test cuts the power.

    Tests of what is forced to the disk, and in which order, put their own in its place; processes of their
    own force as ever.
    """
    os.fstat(descriptor)  # a descriptor that is none is still an error


os.fsync = _leave_to_the_system

LONGEST_FILES = ("test_tutorials.py", "test_simulated_jobs.py", "test_simulator.py")
"""Begun first, so that no worker of pytest-xdist is left with one of them at the end."""
UNIT = Path(__file__).parent / "unit"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order files for pytest-xdist; leave cases of a kind that CI tries once to `make test-faults`."""
    place = _order_of_files(items)
    items.sort(key=lambda item: (item.path.name not in LONGEST_FILES, place[item.path]))
    if os.environ.get("FAULTS") == "all":
        return
    for item in items:
        if item.get_closest_marker("faults") or item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="one more of its kind: make test-faults"))


def _order_of_files(items: Iterable[pytest.Item]) -> dict[Path, float]:
    """Return each file's place: files that compute evenly among those that wait for processes and deadlines.

    While one worker of pytest-xdist waits, the others then use the processor. Large unit tests go first.
    """
    tests = Counter(item.path for item in items)
    units = sorted((path for path in tests if UNIT in path.parents), key=lambda path: -tests[path])
    others = [path for path in tests if UNIT not in path.parents]
    return {path: number / len(files) for files in (units, others) for number, path in enumerate(files)}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Write down what a fault came to, into the file FAULTS_OUT: `python -m tools.fault_table` reads it."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    file = os.environ.get("FAULTS_OUT")
    if file and report.when == "call":
        with open(file, "a", encoding="utf-8") as lines:
            for row in fault_rows(item, report):
                lines.write(json.dumps(row) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """No test depends on which ones ran before it in its process; ahead of fixtures of any scope."""
    import torch

    _freeze_modules(item.config.stash)

    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


_MODULES = pytest.StashKey[int]()


def _freeze_modules(stash: pytest.Stash) -> None:
    """Take loaded modules out of garbage collection, which goes through all objects after every training.

    transformers' Trainer collects at its end; with torch, transformers and thousands of collected tests in
    memory that took longer than the few steps that a test trains.
    """
    if len(sys.modules) != stash.get(_MODULES, 0):
        gc.collect()
        gc.freeze()
        stash[_MODULES] = len(sys.modules)


def pytest_sessionfinish() -> None:
    """Let modules be collected at the interpreter's end, where some complain of what is left."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def public_data() -> Path:
    """The folder of public data sets; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("MEDFLARE_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("public data is not on this machine (set MEDFLARE_DATA)")
    return folder


@pytest.fixture
def known_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Private training whose samples and noise are the same in every run, which only a test may have."""
    from medflare.core.secure_random import SecureRandom

    path = "medflare.differential_privacy.private_step.SecureRandom"
    monkeypatch.setattr(path, lambda: SecureRandom(bytes(32)))
    monkeypatch.setattr("medflare.learners.private_round.secret_seed", lambda: 0)


@pytest.fixture(scope="session")
def tiny_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of a two-layer Llama with random weights and the embedded tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from medflare.models.embedded import decoder_folder

    folder = tmp_path_factory.mktemp("tiny") / "tiny-llama"
    tokenizer = AutoTokenizer.from_pretrained(decoder_folder())
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def small_bert() -> Callable[[Path, Iterable[str], int], Path]:
    """Writes a folder with a BERT of random weights that knows these words, and has so many places."""

    def write(folder: Path, words: Iterable[str], places: int) -> Path:
        import torch
        from transformers import BertConfig, BertModel, BertTokenizer

        vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
        folder.mkdir(exist_ok=True)
        (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
        BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
        shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16}
        size = {"vocab_size": len(vocabulary), "max_position_embeddings": places}
        torch.manual_seed(0)
        BertModel(BertConfig(initializer_range=0.5, **size, **shape)).save_pretrained(folder)
        return folder

    return write


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of a two-layer BERT with random weights and a word-piece tokenizer."""
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    from medflare.synthetic.notes import NOTE_HOSPITALS, generate_notes

    folder = tmp_path_factory.mktemp("encoder") / "tiny-bert"
    words = BertWordPieceTokenizer(lowercase=False)
    words.train_from_iterator(
        [note.text for hospital in NOTE_HOSPITALS for note in generate_notes(hospital, 20)],
        vocab_size=900,
        show_progress=False,
    )
    marks = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "unk", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=words._tokenizer, **marks).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=words.get_vocab_size(),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=128,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def small_hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one synthetic hospital of 60 patients, 64-pixel images."""
    from medflare.synthetic import DEMO_HOSPITALS, write_hospital

    folder = tmp_path_factory.mktemp("hospital") / "site-1"
    write_hospital(DEMO_HOSPITALS[0], folder, 60, size=64)
    return folder
