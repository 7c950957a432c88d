# SPDX-License-Identifier: Apache-2.0
"""FedViT-GPT2 under its three rules, its centralised and its single-site models: radiographs to reports.

Four synthetic hospitals with 40, 30, 20 and 10 % of the patients, as the paper deals out IU-Xray, or the
three publishers of cxr_multisite. All methods start from one folder that fedvit_backbone.py writes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar, Literal

from pydantic import Field

from medflare.core.config import Settings
from medflare.data.settings.site import SiteConfig, load_site_file
from medflare.evaluation.meteor import meteor
from medflare.evaluation.predictions import Prediction
from medflare.evaluation.report_metrics import single_references, tokenised
from medflare.tasks.commonest import commonest_text
from medflare.tasks.prediction_files import read_predictions
from method_comparison.comparison_table import Run
from method_comparison.markdown_table import Column
from method_comparison.result import Measured
from method_comparison.tasks.base import ComparisonTask, ShownRow, Unit
from method_comparison.tasks.needed import real_radiographs
from method_comparison.tasks.prediction_scores import scored_reports

SHARES = {"site-1": 0.4, "site-2": 0.3, "site-3": 0.2, "site-4": 0.1}
"""Site -> its share of the patients, as the paper's."""
REAL = Path(__file__).parents[2] / "jobs" / "fedmrg" / "sites" / "cxr_multisite.yaml"
LEARNER: dict[str, Any] = {
    "optimiser": {"batch": 8, "lr": 1e-3, "warmup": 0.05},
    "decoding": {"beams": 1, "max_new_tokens": 110},
}
"""As in jobs/fedvit_gpt2."""
PREDICTIONS, ROUNDS = "predictions_generic.jsonl", "rounds.json"


class ViTSettings(Settings):
    """Budget, equal for all methods.

    Attributes:
        rounds: of `epochs` passes over a site's images.
        patients: of all four hospitals, dealt out as 40, 30, 20 and 10 %.
        vision_steps, language_steps, attention_steps: of the backbone (fedvit_backbone), on other hospitals.
    """

    rounds: int = Field(default=5, ge=1)
    epochs: int = Field(default=3, ge=1)
    patients: int = Field(default=1500, ge=40)
    vision_steps: int = Field(default=2500, ge=1)
    language_steps: int = Field(default=800, ge=1)
    attention_steps: int = Field(default=2000, ge=1)


class ViTMethod(Settings):
    """A rule and who trains with whom."""

    rule: str = "fedavg"
    rule_settings: dict[str, Any] = Field(default_factory=dict)
    mode: Literal["federated", "pooled", "single", "start"] = "federated"


class FedViT(ComparisonTask[ViTSettings, ViTMethod]):
    """Places: all sites pooled and each site. A row that looks at no image stands in the notes."""

    name = "fedvit_gpt2"
    settings, method_settings = ViTSettings, ViTMethod
    partitions = ("synthetic", "real")
    columns: ClassVar[Mapping[str, Column]] = {
        "seen_f1": Column(title="label micro F1"),
        "swapped_f1": Column(title="of other images' reports", tested=False),
        "gain": Column(title="what the image is worth, points"),
        "distinct": Column(title="different reports, of all", tested=False),
    }
    case_columns: ClassVar[Mapping[str, Column]] = {
        "bleu_1": Column(title="BLEU-1"),
        "bleu_4": Column(title="BLEU-4"),
        "meteor": Column(title="METEOR"),
        "rouge_l": Column(title="ROUGE-L"),
        "cider": Column(title="CIDEr"),
        "label_f1": Column(title="label F1, by study"),
        "label_micro_f1": Column(title="label micro F1"),
    }

    def check(self, settings: ViTSettings, own: ViTMethod) -> None:
        from medflare.aggregation import make_rule

        make_rule(own.rule, own.rule_settings)

    def prepare(self, settings: ViTSettings, partition: str, seed: int, shared: Path) -> None:
        if partition == "synthetic" and not (shared / "cohorts" / "site.yaml").is_file():
            write_hospitals(shared / "cohorts", settings.patients)
        if not (shared / "backbone" / "facts.json").is_file():
            from method_comparison.tasks.fedvit_backbone import write_backbone

            write_backbone(
                shared / "backbone", settings.vision_steps, settings.language_steps, settings.attention_steps
            )

    def inputs(self, settings: ViTSettings, own: ViTMethod, partition: str) -> Sequence[Path]:
        return real_radiographs(partition)

    def train(self, unit: Unit[ViTSettings, ViTMethod]) -> Measured:
        from safetensors.torch import load_file

        from medflare.aggregation import make_rule
        from medflare.core.plan import RoundPlan
        from medflare.in_process.loop import federate
        from medflare.learners.vit_gpt2.learner import build

        given, own, seed = unit.settings, unit.own, unit.seed
        sites = read_sites(unit.shared, unit.partition)
        settings, reports = LEARNER | {"local_epochs": given.epochs}, list[dict[str, Any]]()

        def learner(name: str, site: SiteConfig) -> Any:
            return build(settings, site, seed, unit.shared / "cache" / unit.partition / name)

        for owner, members in groups(own.mode, sites).items():
            learners = {name: learner(name, site) for name, site in members.items()}
            rule = make_rule(own.rule, own.rule_settings)

            checkpoint = unit.progress.checkpoint(owner)

            def note(
                number: int,
                state: Any,
                updates: Any,
                rule: Any = rule,
                owner: str = owner,
                said: list[Any] = checkpoint.noted,
            ) -> None:
                said.append({"round": number, "owner": owner, "rule": rule.report()})

            state = load_file(unit.shared / "backbone" / "start.safetensors")
            if own.mode != "start":
                state = federate(
                    learners,
                    rule,
                    given.rounds,
                    lambda r: RoundPlan(round=r, rounds=given.rounds, seed=seed),
                    on_round=note,
                    state=state,
                    checkpoint=checkpoint,
                )
            reports += checkpoint.noted
            for name in [owner] if owner else list(sites):
                tester = learners.get(name) or learner(name, sites[name])
                tester.load_shared(state)
                predict_tests(tester, name, seed, unit.folder / name)
        (unit.folder / ROUNDS).write_text(json.dumps(reports, indent=1), encoding="utf-8")
        return Measured(values=worth_of_the_image(unit.folder))

    def places(self, settings: ViTSettings, partition: str, folder: Path) -> dict[str, Run]:
        read = {path.parent.name: read_predictions(path) for path in sorted(folder.glob(f"*/{PREDICTIONS}"))}
        if not read:
            return {}
        places = {"all sites, pooled": [item for items in read.values() for item in items], **read}
        return {place: scored(items, tuple(self.case_columns)) for place, items in places.items()}

    def notes(self, partition: str, rows: Mapping[str, ShownRow[ViTSettings]]) -> Sequence[str]:
        shown = []
        kept = [row for row in rows.values() if all(read_unit(unit) for unit in row.folders.values())]
        for row in kept:
            different = mean(len({p.generated for p in read_unit(unit)}) for unit in row.folders.values())
            shown.append(f"{row.title}: {different:g} different reports. {chosen_sites(row)}".strip())
        if kept:
            unit = next(iter(kept[0].folders.values()))
            constant = scored(most_common(read_unit(unit)), tuple(self.case_columns))
            scores = ", ".join(
                f"{self.case_columns[name].title} {100 * item.value:.1f}"
                for name, item in constant.scores.items()
            )
            shown.append(f"The most common report of each site, which looks at no image: {scores}.")
        return shown


def read_unit(folder: Path) -> list[Prediction]:
    """Return the predictions of all sites."""
    return [item for path in sorted(folder.glob(f"*/{PREDICTIONS}")) for item in read_predictions(path)]


def chosen_sites(row: ShownRow[ViTSettings]) -> str:
    """Return how often a rule that chooses chose each site, over all seeds; "" of other rules."""
    chosen = Counter(
        site
        for folder in row.folders.values()
        for entry in json.loads((folder / ROUNDS).read_text(encoding="utf-8"))
        for site in entry["rule"].get("selected", ())
    )
    counts = ", ".join(f"{site} {count}" for site, count in sorted(chosen.items()))
    return f"Chosen: {counts}." if counts else ""


def write_hospitals(folder: Path, patients: int) -> None:
    """Write the four hospitals and their site.yaml; the fourth's profile is trained on by no other study."""
    from medflare.synthetic.hospitals import write_hospital
    from medflare.synthetic.profiles import DEMO_HOSPITALS, UNSEEN_HOSPITAL

    lines = ["sites:"]
    for profile, (site, share) in zip((*DEMO_HOSPITALS, UNSEEN_HOSPITAL), SHARES.items(), strict=True):
        write_hospital(replace(profile, name=site), folder / site, round(share * patients))
        lines += [f"  {site}:", f"    cohort: {{format: manifest, root: {site}}}"]
    (folder / "site.yaml").write_text("\n".join([*lines, ""]), encoding="utf-8")


def read_sites(shared: Path, partition: str) -> dict[str, SiteConfig]:
    """Return the sites, with the pretrained folder as their backbone."""
    found = load_site_file(REAL if partition == "real" else shared / "cohorts" / "site.yaml")
    backbone = {"folder": shared / "backbone", "precision": "fp32"}
    return {
        name: site.model_copy(update={"backbone": site.backbone.model_copy(update=backbone)})
        for name, site in found.items()
        if name != "server"
    }


def groups(mode: str, sites: Mapping[str, SiteConfig]) -> dict[str, dict[str, SiteConfig]]:
    """Return owner of a model -> who trains it; "" where there is one model for all."""
    if mode == "single":
        return {name: {name: site} for name, site in sites.items()}
    if mode == "pooled":
        cohorts = tuple(part for site in sites.values() for part in site.cohort)
        first = next(iter(sites.values()))
        return {"": {"pooled": first.model_copy(update={"name": "pooled", "cohort": cohorts})}}
    return {"": dict(sites)}


def predict_tests(learner: Any, site: str, seed: int, folder: Path) -> None:
    """Write predictions of a site's test images."""
    from medflare.tasks.reports.evaluation import ScoredSite, predict

    rows = learner.samples.split_indices("test")
    tested = ScoredSite(site, "participant", "generic", folder, seed)
    predict(learner.model, learner.samples, rows, tested, learner.settings.decoding)


def worth_of_the_image(folder: Path) -> dict[str, float]:
    """Return label F1 of the drafts, of the drafts of other images, and the difference (VG-12).

    Each study has the draft of the next study of its site whose patient is another one, so that a model which
    writes in a site's style whatever it sees keeps its score, and one that looks at the image loses it.
    """
    own, other = [], []
    for path in sorted(folder.glob(f"*/{PREDICTIONS}")):
        items = read_predictions(path)
        own += items
        other += [swapped(items, place) for place in range(len(items))]
    seen, control = (float(scored_labels(items)) for items in (own, other))
    distinct = len({item.generated for item in own}) / len(own)
    return {"seen_f1": seen, "swapped_f1": control, "gain": seen - control, "distinct": distinct}


def swapped(items: Sequence[Prediction], place: int) -> Prediction:
    """Return a study with the draft of the next one of another patient; with its own where there is none."""
    own = items[place]
    following = (items[(place + step) % len(items)] for step in range(1, len(items)))
    other = next((item for item in following if item.patient_id != own.patient_id), own)
    return own.model_copy(update={"generated": other.generated, "predicted_codes": other.predicted_codes})


def scored_labels(items: Sequence[Prediction]) -> float:
    """Return label micro F1."""
    return scored_reports(list(items), ("label_micro_f1",)).scores["label_micro_f1"].value


def scored(studies: Sequence[Prediction], columns: Sequence[str]) -> Run:
    """Return the columns' statistics with METEOR, and the patient of each study."""
    run = scored_reports(list(studies), columns)
    references = single_references(tokenised([item.reference for item in studies]))
    found = meteor(references, tokenised([item.generated for item in studies]))
    return Run({**run.scores, "meteor": found}, run.groups)


def most_common(studies: Sequence[Prediction]) -> list[Prediction]:
    """Return every study with the commonest reference of its own site, which no image was looked at for."""
    best = {
        site: commonest_text(item.reference for item in studies if item.site == site)
        for site in {item.site for item in studies}
    }
    codes = {item.reference: item.gold_codes for item in studies}
    return [
        item.model_copy(update={"generated": best[item.site], "predicted_codes": codes[best[item.site]]})
        for item in studies
    ]
