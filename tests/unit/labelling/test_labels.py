# SPDX-License-Identifier: Apache-2.0
"""The rule labeller and CheXbert: what a sentence says of a condition."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertConfig, BertModel

from medflare.core.conditions import CONDITIONS, Code
from medflare.core.errors import ConfigError
from medflare.labelling.chexbert import MAX_TOKENS
from medflare.labelling.labels import chexbert_labels, label_report, label_reports, negation_status
from medflare.labelling.negation import Status
from medflare.synthetic.hospitals import generate_reports
from medflare.synthetic.profiles import DEMO_HOSPITALS

ROOT = Path(__file__).parents[3]

SHORT = {
    "ec": "enlarged cardiomediastinum",
    "heart": "cardiomegaly",
    "opacity": "lung opacity",
    "lesion": "lung lesion",
    "edema": "edema",
    "cons": "consolidation",
    "pneu": "pneumonia",
    "atel": "atelectasis",
    "ptx": "pneumothorax",
    "eff": "pleural effusion",
    "pleura": "pleural other",
    "fx": "fracture",
    "dev": "support devices",
}
SIGN = {"+": Code.POSITIVE, "-": Code.NEGATIVE, "?": Code.UNCERTAIN}

SENTENCES = [
    # lists of denials
    ("No focal consolidation, pneumothorax, or large effusion.", "cons- ptx- eff-"),
    ("There is neither pneumothorax nor effusion.", "ptx- eff-"),
    ("Lungs are free of infiltrate, nodule or mass.", "opacity- lesion-"),
    ("The lungs are clear of consolidation.", "cons-"),
    ("Negative for pneumonia and edema.", "pneu- edema-"),
    ("Cardiomegaly without overt edema.", "heart+ edema-"),
    ("Absence of pleural fluid.", "eff-"),
    ("No evidence of rib fracture.", "fx-"),
    ("No opacity to suggest pneumonia.", "opacity- pneu-"),
    ("Pneumothorax: none. Effusion: no.", "ptx- eff-"),
    # denials that follow
    ("A pneumothorax is not seen.", "ptx-"),
    ("Effusion, edema, and pneumothorax are not identified.", "eff- edema- ptx-"),
    ("The right effusion has resolved.", "eff-"),
    ("The previously noted pneumothorax is no longer seen.", "ptx-"),
    ("Pneumonia is unlikely.", "pneu-"),
    ("Fracture has been excluded.", "fx-"),
    ("Interval resolution of edema.", "edema-"),
    ("The chest tube has been removed.", "dev-"),
    # where a denial ends
    ("No pneumothorax, but a small effusion remains.", "ptx- eff+"),
    ("No pneumothorax, small left effusion.", "ptx- eff+"),
    ("No consolidation and there is mild edema.", "cons- edema+"),
    ("No acute abnormality except cardiomegaly.", "heart+"),
    ("No edema; bibasilar atelectasis.", "edema- atel+"),
    ("No pneumothorax with chest tube in place.", "ptx- dev+"),
    ("No pneumothorax following pacemaker placement.", "ptx- dev+"),
    ("Left effusion is unchanged, pneumothorax has resolved.", "eff+ ptx-"),
    # words that only look like denials
    ("No change in the left effusion.", "eff+"),
    ("Not only atelectasis but consolidation.", "atel+ cons+"),
    ("No interval change in cardiomegaly.", "heart+"),
    ("The effusion has not changed.", "eff+"),
    ("Partial resolution of the pneumothorax.", "ptx+"),
    ("No significant change in pneumothorax or effusion.", "ptx+ eff+"),
    ("Atelectasis rather than pneumonia.", "atel+ pneu-"),
    # doubts
    ("Pneumonia cannot be excluded.", "pneu?"),
    ("Cannot exclude a small pneumothorax.", "ptx?"),
    ("Pneumonia is not excluded.", "pneu?"),
    ("Possible small effusion.", "eff?"),
    ("Small effusion possible.", "eff?"),
    ("Opacity which may represent pneumonia.", "opacity+ pneu?"),
    ("Opacity may be due to atelectasis.", "opacity+ atel?"),
    ("Left basilar opacity, atelectasis versus pneumonia.", "opacity+ atel? pneu?"),
    ("Findings are suspicious for pneumonia.", "pneu?"),
    ("Atelectasis or consolidation at the left base.", "atel? cons?"),
    ("Questionable nodule in the left apex.", "lesion?"),
    ("Consider early edema.", "edema?"),
    ("Blunting of the left costophrenic angle.", "eff?"),
    ("Mild pulmonary vascular congestion.", "edema?"),
    ("Changes of congestive heart failure.", "edema+ heart?"),
    # body parts
    ("Heart size is normal.", "heart-"),
    ("The heart is enlarged.", "heart+"),
    ("The cardiac silhouette is not enlarged.", "heart-"),
    ("Heart size is borderline.", "heart?"),
    ("Heart size is upper limits of normal.", "heart-"),
    ("Possible enlargement of the cardiac silhouette.", "heart?"),
    ("Normal heart size and widened mediastinum.", "heart- ec+"),
    ("Unremarkable cardiomediastinal silhouette.", "ec-"),
    ("The cardiomediastinal silhouette is stable.", "ec?"),
    ("Heart and mediastinum are within normal limits.", "heart- ec-"),
    ("Interstitial markings are increased.", "opacity+"),
    # what belongs to which class
    ("Patchy airspace disease in the lingula.", "opacity+"),
    ("Right lower lobe infiltrate.", "opacity+"),
    ("Nodular opacity in the right apex.", "lesion+ opacity+"),
    ("Calcified nodules, prior granulomatous infection.", ""),
    ("Hydropneumothorax on the left.", "ptx+ eff+"),
    ("Large pericardial effusion.", ""),
    ("Apical pleural thickening.", "pleura+"),
    ("Plate-like atelectasis at the base.", "atel+"),
    ("Healed rib fractures.", "fx+"),
    ("Right PICC with tip in the SVC.", "dev+"),
    ("Dual lead pacemaker and sternotomy.", "dev+"),
    ("Hyperexpanded but clear lungs.", ""),
    ("The lungs are clear.", ""),
    # nothing of ours
    ("Degenerative changes of the spine.", ""),
    ("", ""),
]

JUMBLE = "no not or and with , . cannot exclude may opacity edema the heart".split()  # noqa: SIM905


def expected(short: str) -> tuple[int, ...]:
    """Return the codes of the conditions but "no finding"."""
    codes = [Code.BLANK] * (len(CONDITIONS) - 1)
    for word in short.split():
        codes[CONDITIONS.index(SHORT[word[:-1]])] = SIGN[word[-1]]
    return tuple(int(code) for code in codes)


@pytest.mark.parametrize(("text", "short"), SENTENCES, ids=[text or "empty" for text, _ in SENTENCES])
def test_sentence(text: str, short: str) -> None:
    got = {CONDITIONS[i]: Code(c).name for i, c in enumerate(label_report(text)[:-1]) if c}
    want = {CONDITIONS[i]: Code(c).name for i, c in enumerate(expected(short)) if c}
    assert got == want


@pytest.mark.parametrize(
    ("text", "condition", "code"),
    [
        ("Possible effusion. No effusion.", "pleural effusion", Code.UNCERTAIN),
        ("No effusion. Small effusion.", "pleural effusion", Code.POSITIVE),
        ("Possible edema. Edema.", "edema", Code.POSITIVE),
        ("Pacemaker. No effusion.", "no finding", Code.POSITIVE),
        ("Possible pneumonia. No effusion.", "no finding", Code.BLANK),
    ],
)
def test_mentions_of_a_report_are_merged(text: str, condition: str, code: Code) -> None:
    assert label_report(text)[CONDITIONS.index(condition)] == code


@pytest.mark.parametrize(
    "text",
    [
        "No effusion.",
        "The heart is normal in size.",
        "No active disease.",
        "Normal chest radiograph.",
        "Chest within normal limits.",
        "The lungs are clear.",
        "No radiographic evidence of acute cardiopulmonary abnormality.",
        "Unremarkable PA and lateral views of the chest.",
    ],
)
def test_a_report_that_states_normality_has_no_finding(text: str) -> None:
    assert label_report(text)[-1] == Code.POSITIVE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "radiograph radiograph radiograph",
        "Portable technique. Comparison: none available.",
        "Low lung volumes.",
        "Tubular shadow behind the sternum.",
        "The lungs are not clear.",
        "The chest is not normal.",
        "This is not a normal chest radiograph.",
    ],
)
def test_a_report_in_which_nothing_is_recognised_is_unknown_and_not_normal(text: str) -> None:
    assert label_report(text) == (Code.BLANK,) * len(CONDITIONS)


def test_a_nodular_pattern_is_a_finding() -> None:
    codes = dict(
        zip(CONDITIONS, label_report("Diffuse bilateral nodular pattern. No effusion."), strict=True)
    )
    assert codes["lung lesion"] == codes["lung opacity"] == Code.POSITIVE
    assert codes["no finding"] == Code.BLANK


def test_line_breaks_inside_a_sentence_do_not_end_a_denial() -> None:
    assert label_report("There is no\n pneumothorax or\n effusion.")[:-1] == expected("ptx- eff-")


def test_r2gen_cleaned_text_gives_the_same_labels() -> None:
    assert label_report("no effusion . mild edema . ")[:-1] == expected("eff- edema+")


@settings(deadline=None)
@given(st.lists(st.sampled_from([text for text, _ in SENTENCES]), max_size=4), st.sampled_from(SENTENCES))
def test_an_unrelated_sentence_never_takes_a_positive_away(texts: list[str], other: tuple[str, str]) -> None:
    before = label_report(" ".join(texts))[:-1]
    after = label_report(" ".join([*texts, other[0]]))[:-1]
    assert all(b == Code.POSITIVE for a, b in zip(before, after, strict=True) if a == Code.POSITIVE)


@given(st.sampled_from(SENTENCES))
def test_case_does_not_matter(row: tuple[str, str]) -> None:
    assert label_report(row[0].upper()) == label_report(row[0].lower()) == label_report(row[0])


@settings(deadline=None)
@given(st.text(alphabet=st.characters(), max_size=200))
def test_any_text_has_labels(text: str) -> None:
    codes = label_report(text)
    assert len(codes) == len(CONDITIONS)
    assert set(codes) <= set(Code)
    assert codes[-1] in (Code.BLANK, Code.POSITIVE)


@settings(deadline=None)
@given(st.lists(st.sampled_from(JUMBLE)))
def test_any_jumble_of_cues_has_labels(words: list[str]) -> None:
    assert len(label_report(" ".join(words))) == len(CONDITIONS)


@pytest.mark.parametrize(
    ("sentence", "phrase", "status"),
    [
        ("He denies fever, chills or COUGH.", "COUGH", Status.NEGATED),
        ("He denies fever but reports COUGH.", "COUGH", Status.AFFIRMED),
        ("Rule out MYOCARDIAL INFARCTION.", "MYOCARDIAL INFARCTION", Status.POSSIBLE),
        ("No findings suggesting osteomyelitis.", "osteomyelitis", Status.NEGATED),
    ],
)
def test_negation_status(sentence: str, phrase: str, status: Status) -> None:
    start = sentence.index(phrase)
    assert negation_status(sentence, (start, start + len(phrase))) is status


# -------------------------------------------------------------------------------- reference sets


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("labeller_benchmark", ROOT / "benchmarks" / "labeller.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_agrees_with_the_published_chexpert_samples(benchmark: ModuleType, public_data: Path) -> None:
    samples = benchmark.chexpert_samples(public_data)
    assert len(samples) == 4
    assert label_reports(text for text, _ in samples) == [codes for _, codes in samples]


def test_negex_f1(benchmark: ModuleType, public_data: Path) -> None:
    assert benchmark.f1(benchmark.negex_counts(public_data).sum(axis=0)) > 0.96


def test_indiana_micro_f1_of_the_half_that_was_not_tuned_on(benchmark: ModuleType, public_data: Path) -> None:
    rows = benchmark.indiana_reports(public_data, "report")
    codes = torch.tensor(label_reports(benchmark.indiana_text(row) for row in rows)).numpy()
    findings = [name for name in benchmark.GOLD if name != "no finding"]
    counts = benchmark.indiana_counts(rows, codes == Code.POSITIVE, findings)
    assert benchmark.f1(counts.sum(axis=(0, 1))) > 0.84


def test_agrees_with_the_synthetic_hospitals() -> None:
    true = said = both = 0
    for study in (study for profile in DEMO_HOSPITALS for study in generate_reports(profile, 150)):
        got = label_report(study.report)
        pairs = [(a == Code.POSITIVE, b == Code.POSITIVE) for a, b in zip(study.codes, got, strict=True)]
        true += sum(a for a, _ in pairs)
        said += sum(b for _, b in pairs)
        both += sum(a and b for a, b in pairs)
    assert 2 * both / (true + said) >= 0.98


# --------------------------------------------------------------------------------------- CheXbert

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "no", "edema", "effusion", ".", "clear", "##ly"]


@pytest.fixture(scope="module")
def tiny_chexbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of two layers in the layout of the published chexbert.pth."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("chexbert")
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.5,
    )
    bert = BertModel(config)
    state = {f"module.bert.{key}": value for key, value in bert.state_dict().items()}
    state["module.bert.embeddings.position_ids"] = torch.arange(512)[None]
    for index in range(14):
        classes = 2 if index == 13 else 4
        state[f"module.linear_heads.{index}.weight"] = torch.randn(classes, 16)
        state[f"module.linear_heads.{index}.bias"] = torch.randn(classes)
    torch.save({"epoch": 1, "model_state_dict": state}, folder / "chexbert.pth")
    config.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return folder


def test_chexbert_applies_its_heads_to_the_first_state(tiny_chexbert: Path) -> None:
    state = torch.load(tiny_chexbert / "chexbert.pth", weights_only=True)["model_state_dict"]
    bert = BertModel(BertConfig.from_pretrained(tiny_chexbert))
    prefix = "module.bert."
    bert.load_state_dict(
        {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}, strict=False
    )
    ids = torch.tensor([[2, 5, 6, 8, 3]])  # [CLS] no edema . [SEP]
    with torch.no_grad():
        first = bert.eval()(input_ids=ids).last_hidden_state[0, 0]
    heads = [
        (state[f"module.linear_heads.{i}.weight"], state[f"module.linear_heads.{i}.bias"]) for i in range(14)
    ]
    assert chexbert_labels(["No\nedema."], tiny_chexbert) == [
        tuple(int((w @ first + b).argmax()) for w, b in heads)
    ]


def test_chexbert_does_not_depend_on_the_batch(tiny_chexbert: Path) -> None:
    texts = ["no edema.", "clear clear clear effusion", "", "effusion"]
    codes = chexbert_labels(texts, tiny_chexbert)
    assert codes == chexbert_labels(texts, tiny_chexbert, batch_size=1)
    assert all(len(row) == 14 and row[13] in (0, 1) for row in codes)


def test_chexbert_cuts_at_512_tokens(tiny_chexbert: Path) -> None:
    kept = "clear " * (MAX_TOKENS - 2)
    long, cut = chexbert_labels([kept + "effusion " * 200, kept], tiny_chexbert)
    assert long == cut


def test_chexbert_says_what_to_download(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"chexbert\.pth, vocab\.txt.*download"):
        chexbert_labels(["x"], tmp_path / "nowhere")


def test_chexbert_refuses_another_model(tiny_chexbert: Path, tmp_path: Path) -> None:
    for name in ("config.json", "vocab.txt"):
        (tmp_path / name).write_bytes((tiny_chexbert / name).read_bytes())
    torch.save({"bert.pooler.dense.bias": torch.zeros(16)}, tmp_path / "chexbert.pth")
    with pytest.raises(ConfigError, match="not a CheXbert checkpoint"):
        chexbert_labels(["x"], tmp_path)
