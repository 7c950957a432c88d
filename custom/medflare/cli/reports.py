# SPDX-License-Identifier: Apache-2.0
"""`medflare evaluate | generate | page`: commands on a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from medflare.cli.output import JSON_OPTION, ItemBatch, names, plain_errors, print_json
from medflare.core.config import read_pairs

NOTICE = "Draft for a radiologist, never a diagnosis."

if TYPE_CHECKING:
    from medflare.models.report_generator import DecodingSettings
    from medflare.models.report_result import Drafter
    from medflare.tasks.scoring import EvaluationOptions


@plain_errors
def evaluate(
    runs: list[Path] = typer.Argument(
        ..., metavar="RUN", help="A run's folder or run.json; or files of extraction predictions (.jsonl)."
    ),
    site_file: Path | None = typer.Option(None, "--site-file", "-f", help="site.yaml of the sites to test."),
    sites: str | None = typer.Option(None, "--sites", help="Which of them; default all."),
    adapter: str = typer.Option("final", "--adapter", help="final or best."),
    personalised: Path | None = typer.Option(None, "--personalised", help="A site's own adapter folder."),
    split: str = typer.Option("test", "--split", help="train, val, test, or all of them."),
    scorer: list[str] = typer.Option(
        [], "--scorer", help="name=folder of local weights, e.g. chexbert=/models/chexbert."
    ),
    reference_words: int | None = typer.Option(
        None,
        "--reference-words",
        min=1,
        help="Reports, scores by R2Gen's rules: words of a reference that count. PromptMRG counts 100.",
    ),
    against: list[Path] = typer.Option(
        [], "--against", help="Another system's extraction predictions of the same notes, to compare with."
    ),
    types: bool = typer.Option(True, help="Break extraction scores down by type."),
    zero_shot: bool = typer.Option(
        False, "--zero-shot", help="Test the run's language model without its adapter, to compare with."
    ),
    limit: int | None = typer.Option(
        None, "--limit", min=1, help="Test the first N records alone; the record of the run stays as it is."
    ),
    batch: int | None = typer.Option(None, "--batch", min=1, help="Prompts of one batch."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Tests a run's adapter on sites' own studies; adds the scores to the record.

    Without a site file: scores extraction predictions that are already there.

    [bold]Examples[/bold]: medflare evaluate runs/20261120-fedmrg -f cohorts/site.yaml --sites hospital-4
    medflare evaluate runs/20261120-fed_medlora -f site.yaml --zero-shot
    medflare evaluate fedmedlora.jsonl --against zero-shot.jsonl
    """
    from medflare.core.errors import ConfigError
    from medflare.data.records import SPLITS
    from medflare.tasks.scoring import EVERY_SPLIT, EvaluationOptions

    if split not in (*SPLITS, EVERY_SPLIT):
        raise ConfigError(f"--split {split}: expected {', '.join((*SPLITS, EVERY_SPLIT))}.")
    if site_file is None:
        from medflare.cli.evaluate_extraction import score_files

        test_options = {
            "--adapter": adapter != "final",
            "--personalised": personalised,
            "--scorer": scorer,
            "--zero-shot": zero_shot,
            "--limit": limit,
            "--batch": batch,
            "--reference-words": reference_words,
        }
        if any(test_options.values()):
            given = ", ".join(name for name, value in test_options.items() if value)
            raise ConfigError(f"{given}: says how to test an adapter, which needs --site-file.")
        score_files(runs, against, sites=names(sites), split=split, by_type=types, as_json=as_json)
        return
    if len(runs) != 1 or against:
        raise ConfigError("--site-file tests the adapter of one run; name one run, and no --against.")
    if adapter not in ("final", "best"):
        raise ConfigError(f"--adapter {adapter}: expected final or best.")
    if zero_shot and personalised:
        raise ConfigError("--zero-shot tests the model without any adapter; leave --personalised out.")
    _test_adapter(
        runs[0],
        site_file,
        names(sites),
        as_json,
        EvaluationOptions(limit=limit, batch=batch, zero_shot=zero_shot, reference_words=reference_words),
        adapter=adapter,
        personalised=personalised,
        split=split,
        scorers={key: str(value) for key, value in read_pairs(scorer).items()},
    )


def _test_adapter(
    run: Path,
    site_file: Path,
    sites: list[str] | None,
    as_json: bool,
    options: EvaluationOptions,
    **how: Any,
) -> None:
    """Test a run's adapter at sites and print its scores; `how` goes to `recipes.after_run.score_site`."""
    from dataclasses import replace

    from rich.console import Console

    from medflare.cli.progress import progress_bar
    from medflare.cli.run import SHOWN
    from medflare.core.errors import ConfigError
    from medflare.core.run_record import read_record
    from medflare.data.settings.site import load_site, load_site_file
    from medflare.federation.server.scorer import SERVER
    from medflare.recipes.after_run import locate, score_site
    from medflare.reporting.score_rows import rows_of
    from medflare.reporting.tables import results_table

    record_path = locate(run)
    known = sorted(set(load_site_file(site_file)) - {SERVER})
    if unknown := [name for name in sites or () if name not in known]:
        raise ConfigError(f"--sites {', '.join(unknown)}: not in {site_file}. It has: {', '.join(known)}.")
    chosen = sites or known
    evaluations, batch = [], ItemBatch()
    for name in chosen:
        with batch.item(name):
            site = load_site(site_file, name)
            with progress_bar(f"testing at {name}") as progress:
                tested = score_site(record_path, site, options=replace(options, progress=progress), **how)
            evaluations.append(tested)
    batch.require_some()
    if as_json:
        print_json([item.model_dump() for item in evaluations])
        batch.finish()
        return
    console = Console()
    record = read_record(record_path)
    if options.limit is not None:
        record.evaluations = evaluations
        console.print(f"The first {options.limit} records of each site; not added to the run's record.")
    rows = rows_of([record])
    console.print(
        results_table([row for row in rows if row.site in chosen and row.split == how["split"]], SHOWN)
    )
    for metric, why in {m: w for item in evaluations for m, w in item.skipped_metrics.items()}.items():
        console.print(f"{metric}: {why}", style="dim")
    batch.finish()


@plain_errors
def generate(
    images: list[Path] = typer.Argument(..., help="Radiographs: PNG, JPEG, DICOM or NIfTI."),
    result: Path = typer.Option(..., "--result", "-r", help="A run's folder, or a result/adapter folder."),
    personalised: Path | None = typer.Option(
        None, "--personalised", "-p", help="A site's own adapter folder."
    ),
    backbone: Path | None = typer.Option(
        None,
        "--backbone",
        help="Folder of the base model; default that of the run, where it is on this machine.",
    ),
    precision: str = typer.Option("auto", "--precision", help="auto, fp32, bf16, int8 or nf4."),
    device: str = typer.Option("cpu", "--device", help="cpu or cuda."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Drafts a report for each image. A draft for a radiologist to check, never a diagnosis.

    A file whose header says that it is no radiograph of a chest is left out; what is in doubt stands beside
    the draft. An image that cannot be used costs no other one its draft; exit code 7 says that some were left
    out.

    [bold]Example[/bold]: medflare generate chest.dcm -r runs/20261120-fedmrg
    """
    from medflare.models.backbone import device_of
    from medflare.models.report_result import load_generator

    model, decoding = load_generator(
        adapter_folder(result),
        personalised=personalised,
        backbone=backbone,
        precision=precision,
        device=device_of(device),
    )
    drafts, batch = list[dict[str, Any]](), ItemBatch()
    origin = _origin(result)
    if not as_json:
        typer.secho(f"{NOTICE} {_origin_words(origin)}\n", fg="yellow")
    for path in images:
        with batch.item(path):
            drafts.append({**_draft(model, decoding, path), "notice": NOTICE, "model": origin})
            if not as_json:
                typer.secho(str(path), bold=True)
                for warning in drafts[-1]["warnings"]:
                    typer.secho(f"! {warning}", fg="yellow")
                typer.echo(f"{drafts[-1]['report']}\n")
    batch.require_some()
    if as_json:
        print_json(drafts)
    batch.finish()


def _draft(model: Drafter, decoding: DecodingSettings, path: Path) -> dict[str, Any]:
    """Return the draft of one image, JSON types."""
    import torch

    from medflare.core.conditions import CONDITIONS, Code
    from medflare.data.images import centre
    from medflare.data.store import one_image
    from medflare.identifiers.kinds import identifier_warning
    from medflare.identifiers.rules import RuleDetector
    from medflare.tasks.reports.repetition import repetition

    encoder = model.settings.encoder
    image, warnings = one_image(path, encoder.stored_size)
    with torch.no_grad():
        texts, codes = model.generate(centre(image, encoder.image_size).to(model.device), decoding)
    findings = {
        c: Code(int(k)).name.lower() for c, k in zip(CONDITIONS, codes[0], strict=True) if k != Code.BLANK
    }
    if named := identifier_warning(texts[0], RuleDetector()):
        warnings.append(f"the draft {named}")
    if repeated := repetition(texts[0]):
        warnings.append(f"the draft goes in circles and should not be used: {repeated}")
    return {
        "image": str(path),
        "report": texts[0],
        "warnings": warnings,
        "findings": findings if model.settings.prompts else {},
    }


def _origin(result: Path) -> dict[str, Any]:
    """Return what a draft says of its model: run, method, backbone, and who trained it on how much.

    Empty where only the adapter's folder is named.
    """
    from medflare.core.run_record import read_record
    from medflare.recipes.after_run import locate

    if (result / "adapter_config.json").is_file():
        return {}
    record = read_record(locate(result))
    return {
        "run_id": record.run_id,
        "method": record.method,
        "backbones": sorted({f"{site.backbone} {site.fingerprint[:16]}" for site in record.sites.values()}),
        "trained_on": {name: site.examples.get("train", 0) for name, site in sorted(record.sites.items())},
    }


def _origin_words(origin: dict[str, Any]) -> str:
    """Return the origin in one line."""
    if not origin:
        return "The folder of an adapter does not say what it was trained on; name the run's folder instead."
    sites = ", ".join(f"{name} ({count:,})" for name, count in origin["trained_on"].items())
    return (
        f"Model: {origin['method']}, run {origin['run_id']}, on {', '.join(origin['backbones'])}; training "
        f"studies: {sites}."
    )


def adapter_folder(result: Path) -> Path:
    """Return a result/adapter folder, given as it is or through the run it belongs to.

    Raises:
        DataError: the run kept no result.
    """
    from medflare.core.errors import DataError
    from medflare.core.run_record import read_record
    from medflare.recipes.after_run import locate

    if (result / "adapter_config.json").is_file():
        return result
    record_path = locate(result)
    artefacts = read_record(record_path).artefacts
    if "final" not in artefacts:
        raise DataError(
            f"{record_path}: the run kept no result; it has: {', '.join(artefacts) or 'nothing'}."
        )
    return record_path.parent / artefacts["final"]


@plain_errors
def page(
    run: Path = typer.Argument(..., help="A run's folder, or its run.json."),
    out: Path | None = typer.Option(None, "--out", "-o", help="The HTML file; default beside the record."),
    gallery: int = typer.Option(
        4, "--gallery", min=0, help="Studies shown of each site; 0 leaves patients out."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Writes one self-contained HTML page: curves, sites, traffic, scores, and drafts beside references.

    [bold]Example[/bold]: medflare page runs/20261120-fedmrg --gallery 0
    """
    from medflare.recipes.after_run import locate
    from medflare.reporting.page import write_page

    written = write_page(locate(run), out, gallery)
    if as_json:
        print_json({"page": str(written)})
    else:
        typer.echo(str(written))
