# SPDX-License-Identifier: Apache-2.0
"""The text model against references: its loss, its batches, its answers, its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPast

from medflare.core.errors import ConfigError
from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.lora import LoraSettings
from medflare.models.backbone import Backbone, load_backbone
from medflare.models.text_backbone import CACHE
from medflare.models.text_model import Sequenced, TextModel

WORDS = "no pain chest fever of the left lung <out> severe denies 10 mg".split()  # noqa: SIM905
SIZE = 64
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SHAPE: dict[str, Any] = {
    "vocab_size": 32, "hidden_size": SIZE, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128,
}  # fmt: skip
QUESTIONS = ["no pain", "chest pain of the left lung fever", "denies", "severe fever 10 mg"]
ANSWERS = ["pain", "lung no", "", "10 mg of the"]


def tokenizer(**special: str) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    marks = ["<pad>", "<s>", "</s>", "<unk>"]
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*marks, *WORDS])}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", **special)


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SHAPE, bos_token_id=1, eos_token_id=2, pad_token_id=0))


def qwen2() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**SHAPE, bos_token_id=1, eos_token_id=2, pad_token_id=0))


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=SIZE, n_layer=2, n_head=2, n_positions=40,
                                      bos_token_id=2, eos_token_id=2, pad_token_id=2))  # fmt: skip


FAMILIES: dict[str, tuple[Callable[[], Any], tuple[str, ...], dict[str, str]]] = {
    "llama": (llama, PROJECTIONS, {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}),
    "qwen2": (qwen2, PROJECTIONS, {"eos_token": "</s>", "pad_token": "<pad>"}),
    "gpt2": (gpt2, ("c_attn", "c_proj", "c_fc"), {"bos_token": "</s>", "eos_token": "</s>"}),
}


def stir(model: TextModel) -> TextModel:
    """Gives every factor B values, so that A has a gradient and the adapter an effect."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.adapters.parameters(GENERIC):
            parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
    model.adapters.use((GENERIC,), train=(GENERIC,))
    return model


def build(
    family: str = "llama", dropout: float = 0.0, targets: Sequence[str] = (), precision: str = "fp32"
) -> TextModel:
    make, all_targets, special = FAMILIES[family]
    torch.manual_seed(0)
    net = make().requires_grad_(False).eval()
    if precision == "bf16":
        net.to(torch.bfloat16)
    backbone = Backbone(model=net, tokenizer=tokenizer(**special), name=family, fingerprint="", template={},
                        precision=precision, code_words=None, condition_words=None)  # fmt: skip
    lora = LoraSettings(rank=4, targets=tuple(targets) or all_targets, dropout=dropout)
    return stir(TextModel(backbone, lora, (GENERIC,), 0))


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> TextModel:
    return build(request.param)


def gradients(model: TextModel, batch: Sequence[Sequenced]) -> list[Tensor]:
    parameters = model.adapters.parameters(GENERIC)
    for parameter in parameters:
        parameter.grad = None
    total, count = model.loss(batch)
    (total / count).backward()
    return [p.grad.clone() for p in parameters if p.grad is not None]


def same(first: Sequence[Tensor], second: Sequence[Tensor], atol: float = 1e-6) -> bool:
    pairs = zip(first, second, strict=True)
    return len(first) > 0 and all(torch.allclose(a, b, atol=atol, rtol=1e-4) for a, b in pairs)


def test_the_answer_and_one_end_mark_are_supervised_and_the_question_is_not(model: TextModel) -> None:
    for row, question, answer in zip(model.sequences(QUESTIONS, ANSWERS), QUESTIONS, ANSWERS, strict=True):
        text = model.backbone.tokenizer.convert_ids_to_tokens(list(row.ids))
        assert text[row.start :] == [*answer.split(), "</s>"]
        assert text[: row.start][len(model.begin) :] == question.split()


def test_the_loss_is_that_of_labels_minus_100_on_the_whole_sequence(model: TextModel) -> None:
    for row in model.sequences(QUESTIONS, ANSWERS):
        ids = torch.tensor([row.ids])
        labels = ids.clone()
        labels[0, : row.start] = -100
        total, count = model.loss([row])
        assert count == len(row.ids) - row.start
        reference = model.backbone.model(input_ids=ids, labels=labels).loss
        assert torch.allclose(total / count, reference, atol=1e-5)


def test_the_loss_does_not_depend_on_padding_and_company(model: TextModel) -> None:
    rows = model.sequences(QUESTIONS, ANSWERS)
    alone = [model.loss([row]) for row in rows]
    total, count = model.loss(rows)
    assert count == sum(tokens for _, tokens in alone)
    assert torch.allclose(total, torch.stack([loss for loss, _ in alone]).sum(), atol=1e-4)
    means = [model.mean_loss(rows, batch) for batch in (1, 3, 4)]
    assert means == pytest.approx([total.item() / count] * 3, abs=1e-5)


def test_answers_do_not_depend_on_padding_and_company(model: TextModel) -> None:
    budgets = [7] * len(QUESTIONS)
    alone = [model.answer([question], [7], 1)[0] for question in QUESTIONS]
    assert model.answer(QUESTIONS, budgets, 4) == alone
    assert model.answer(QUESTIONS[::-1], budgets, 3) == alone[::-1]


def test_an_answer_is_what_the_largest_logits_say(model: TextModel) -> None:
    for question in QUESTIONS:
        ids = model.prompt_ids([question])[0]
        tail: list[int] = []
        with torch.no_grad():
            while len(tail) < 6 and model.end not in tail:
                out = model.backbone.model(input_ids=torch.tensor([[*ids, *tail]])).logits
                tail.append(int(out[0, -1].argmax()))
        text = model.backbone.tokenizer.decode([i for i in tail if i != model.end], skip_special_tokens=True)
        written = model.answer([question], [6], 1)[0]
        assert (written.text, written.ended) == (text, model.end in tail)


class Scripted(torch.nn.Module):
    """A decoder that writes `tail` and then padding after any prompt of one token."""

    def __init__(self, tail: list[int]) -> None:
        super().__init__()
        self.tail = torch.tensor(tail + [0] * 100)
        self.config, self.device = SimpleNamespace(max_position_embeddings=100), torch.device("cpu")

    def get_decoder(self) -> Any:
        return self

    def get_output_embeddings(self) -> Any:
        return torch.nn.Identity()

    def forward(self, position_ids: Tensor, **others: Any) -> Any:
        cache = DynamicCache() if others[CACHE] is None else others[CACHE]
        nothing = torch.zeros(len(position_ids), 1, position_ids.shape[1], 1)
        cache.update(nothing, nothing, 0)
        next_ids = self.tail[position_ids - 1]  # a prompt is one begin mark and one word
        logits = torch.nn.functional.one_hot(next_ids, 32).float()
        return BaseModelOutputWithPast(last_hidden_state=logits, **{CACHE: cache})


@pytest.mark.parametrize(
    ("budget", "text", "ended"),
    [(1, "no", False), (2, "no pain", False), (3, "no pain", True), (9, "no pain", True)],
)
def test_a_budget_cuts_an_answer_and_says_so(budget: int, text: str, ended: bool) -> None:
    model = build()
    model.backbone.model, model.fused = Scripted([4, 5, model.end, 6]), None
    written = model.answer(["pain", "fever"], [budget, 20], 2)
    assert (written[0].text, written[0].ended) == (text, ended)
    assert (written[1].text, written[1].ended) == ("no pain", True)


def test_an_answer_ends_with_the_positions_of_the_backbone() -> None:
    model = build("gpt2")
    long = " ".join(["pain"] * 36)
    assert model.context == 40
    assert len(model.answer([long], [20], 1)[0].text.split()) <= 3
    assert model.answer([" ".join(["pain"] * 60)], [20], 1)[0].text == ""


def test_habits_of_the_backbone_do_not_change_an_answer(model: TextModel) -> None:
    plain = model.answer(QUESTIONS, [12] * 4, 2)
    config = model.backbone.model.generation_config
    config.repetition_penalty, config.min_new_tokens, config.no_repeat_ngram_size = 5.0, 10, 1
    assert model.answer(QUESTIONS, [12] * 4, 2) == plain
    assert model.backbone.model.generation_config is config


def test_nothing_asked_is_nothing_answered(model: TextModel) -> None:
    assert model.prompt_ids([]) == model.sequences([], []) == model.answer([], [], 4) == []
    assert model.mean_loss([], 4) != model.mean_loss([], 4)


def test_a_backbone_without_an_end_mark_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no end mark"):
        TextModel(SimpleNamespace(model=llama(), tokenizer=tokenizer(), name="endless"),  # type: ignore[arg-type]
                  LoraSettings(), (GENERIC,), 0)  # fmt: skip


def test_checkpointing_changes_no_gradient_and_no_answer(model: TextModel) -> None:
    rows = model.sequences(QUESTIONS, ANSWERS)
    model.backbone.model.train()
    for module in model.backbone.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    expected, answers = gradients(model, rows), model.answer(QUESTIONS, [6] * 4, 2)
    model.checkpoint_gradients()
    model.backbone.model.train()
    assert same(gradients(model, rows), expected)
    assert model.answer(QUESTIONS, [6] * 4, 2) == answers


def test_evaluating_and_answering_leave_gradients_as_they_were(model: TextModel) -> None:
    rows = model.sequences(QUESTIONS, ANSWERS)
    before = gradients(model, rows)
    model.mean_loss(rows, 2)
    model.answer(QUESTIONS, [4] * 4, 2)
    assert same(gradients(model, rows), before)


def test_evaluating_has_no_dropout_and_gives_the_mode_back() -> None:
    model = build(dropout=0.5)
    rows = model.sequences(QUESTIONS, ANSWERS)
    model.backbone.model.train()
    assert model.loss(rows)[0] != model.loss(rows)[0]
    assert model.mean_loss(rows, 4) == model.mean_loss(rows, 4)
    assert model.backbone.model.training
    model.backbone.model.eval()
    model.mean_loss(rows, 4)
    assert not model.backbone.model.training


def test_only_the_adapter_learns(model: TextModel) -> None:
    gradients(model, model.sequences(QUESTIONS, ANSWERS))
    adapter_parameters = {id(parameter) for parameter in model.adapters.parameters(GENERIC)}
    every = list(model.backbone.model.parameters())
    assert adapter_parameters < {id(parameter) for parameter in every}
    assert all((p.grad is not None) == (id(p) in adapter_parameters) for p in every)


@pytest.fixture(params=["nf4", "int8"])
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> TextModel:
    """A packed base. Of a 4-bit one libraries.md 4 measured that evaluation made training gradients wrong."""
    pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    llama().save_pretrained(tmp_path)
    tokenizer(bos_token="<s>", eos_token="</s>", pad_token="<pad>").save_pretrained(tmp_path)
    backbone = load_backbone(tmp_path, request.param)
    return stir(TextModel(backbone, LoraSettings(rank=4, targets=PROJECTIONS), (GENERIC,), 0))


def test_gradients_on_a_packed_base_survive_evaluation(
    packed: TextModel, caplog: pytest.LogCaptureFixture
) -> None:
    rows = packed.sequences(QUESTIONS, ANSWERS)
    layers = {type(module).__name__ for module in packed.backbone.model.modules()}
    assert layers & {"Linear4bit", "Linear8bitLt"}
    packed.backbone.model.train()
    before = gradients(packed, rows)
    packed.mean_loss(rows, 2)
    packed.answer(QUESTIONS, [4] * 4, 2)
    assert packed.backbone.model.training
    after = gradients(packed, rows)
    assert same(after, before, atol=0.0)
    assert all(gradient.abs().sum() > 0 for gradient in after)
    assert not caplog.records, "bitsandbytes says of every product that it casts its inputs"


def test_a_packed_base_learns(packed: TextModel) -> None:
    rows = packed.sequences(QUESTIONS, ANSWERS)
    optimiser = torch.optim.AdamW(packed.adapters.parameters(GENERIC), lr=0.02)
    first = packed.mean_loss(rows, 4)
    for _ in range(15):
        gradients(packed, rows)
        optimiser.step()
    assert packed.mean_loss(rows, 4) < 0.9 * first
