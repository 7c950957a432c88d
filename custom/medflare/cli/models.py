# SPDX-License-Identifier: Apache-2.0
"""`medflare models`: pretrained language models on this machine, added once and named in site.yaml."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from medflare.cli.output import JSON_OPTION, ItemBatch, plain_errors, print_json

if TYPE_CHECKING:
    from medflare.models.model_store import ModelFacts
    from medflare.models.text_check import TextCheck

app = typer.Typer(help="Pretrained language models on this machine.", no_args_is_help=True)
NAME = typer.Argument(..., help="As `medflare models list` shows it.")


@app.command()
@plain_errors
def add(
    source: Path = typer.Argument(..., help="A .gguf file, or a Hugging Face folder with safetensors."),
    name: str | None = typer.Option(
        None, "--name", help="As site.yaml will name it; default the file's name."
    ),
    full_wording: bool = typer.Option(
        False, "--full-wording", help="Prompts with every type's definition, for use without any training."
    ),
    own_wording: Path | None = typer.Option(
        None, "--wording", help="A medflare_prompt.json of your own; what it leaves out stays."
    ),
    untrained: bool = typer.Option(False, "--untrained", help="Accept weights that predict no text."),
    replace: bool = typer.Option(False, "--replace", help="Replace a model of this name."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Converts a model, checks that it predicts text, and writes its wording from its own chat template.

    [bold]Example[/bold]: medflare models add SmolLM2-135M-Instruct.Q4_1.gguf --name smollm2
    """
    from functools import partial

    from medflare.models.model_store import add_model
    from medflare.tasks.chat_wording import chat_wording, read_wording

    wording = partial(chat_wording, full=full_wording)
    given_wording = None if own_wording is None else read_wording(own_wording)
    added = add_model(source, name, wording, own_wording=given_wording, untrained=untrained, replace=replace)
    if as_json:
        print_json({**added.facts.model_dump(), "folder": added.folder, **_measured(added.check)})
        return
    _print_facts(added.facts, added.folder)
    _print_check(added.check)
    if not added.facts.chat_template:
        typer.echo(
            "It has no chat template: prompts have our wording. Its own goes into medflare_prompt.json."
        )
    typer.secho(f"In site.yaml:  backbone: {{name: {added.facts.name}}}", fg=typer.colors.GREEN)


@app.command("list")
@plain_errors
def list_models(as_json: bool = JSON_OPTION) -> None:
    """Lists the models of this machine; one whose record is damaged is named and left out.

    [bold]Example[/bold]: medflare models list
    """
    from medflare.core.model_folders import models_root, stored_models
    from medflare.models.model_store import read_facts

    facts: list[ModelFacts] = []
    batch = ItemBatch()
    for name in stored_models():
        with batch.item(name):
            facts.append(read_facts(name))
    batch.require_some()
    if as_json:
        print_json([item.model_dump() for item in facts])
    elif facts:
        _print_table(facts)
    else:
        typer.echo(f"No model in {models_root()} yet. Add one: medflare models add FILE.gguf")
    batch.finish()


@app.command()
@plain_errors
def show(name: str = NAME, as_json: bool = JSON_OPTION) -> None:
    """Shows a model: size, context, where it is from, its wording, and memory in each precision.

    [bold]Example[/bold]: medflare models show smollm2
    """
    from medflare.core.model_folders import stored_model
    from medflare.models.frozen_weights import bytes_of_folder
    from medflare.models.model_store import read_facts

    facts, folder = read_facts(name), stored_model(name)
    if as_json:
        print_json({**facts.model_dump(), "folder": folder, "bytes": bytes_of_folder(folder)})
        return
    _print_facts(facts, folder)
    wording = folder / "medflare_prompt.json"
    typer.echo(f"wording        {wording if wording.is_file() else 'ours; none in the folder'}")


@app.command()
@plain_errors
def check(name: str = NAME, as_json: bool = JSON_OPTION) -> None:
    """Checks that a model is what was added and still predicts text, and measures its speed here.

    [bold]Example[/bold]: medflare models check smollm2
    """
    from medflare.core.model_folders import stored_model
    from medflare.models.model_store import check_model, check_unchanged

    facts = check_unchanged(name)
    _, measured = check_model(stored_model(name))
    if as_json:
        print_json({**facts.model_dump(), **_measured(measured)})
        return
    typer.echo(f"{name}: unchanged since it was added, fingerprint {facts.fingerprint[:16]}")
    _print_check(measured)


def _print_table(facts: Sequence[ModelFacts]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "name", "parameters", "context", "architecture", "licence", "perplexity", title_justify="left"
    )
    for item in facts:
        numbers = (
            f"{item.parameters:,}",
            f"{item.context:,}",
            item.architecture,
            item.licence or "not stated",
        )
        table.add_row(item.name, *numbers, f"{item.perplexity:.1f}")
    Console().print(table)


def _print_facts(facts: ModelFacts, folder: Path) -> None:
    from medflare.models.frozen_weights import bytes_of_folder

    sizes = bytes_of_folder(folder)
    rows = {
        "model": f"{facts.name}: {facts.architecture}, {facts.layers} layers",
        "parameters": f"{facts.parameters:,}",
        "context": f"{facts.context:,} tokens",
        "made of": " ".join([facts.source, *([f"({facts.quantisation})"] if facts.quantisation else [])]),
        "SHA-256": facts.sha256 or "of a folder: see the fingerprint",
        "licence": facts.licence or "not stated: ask whoever gave it to you",
        "chat template": "yes" if facts.chat_template else "no",
        "weights": ", ".join(f"{size / 1e9:.2f} GB in {kind}" for kind, size in sizes.items()),
        "fingerprint": facts.fingerprint,
        "folder": str(folder),
    }
    for name, value in rows.items():
        typer.echo(f"{name:14} {value}")


def _print_check(check: TextCheck) -> None:
    verdict = "predicts text" if check.predicts else "does not predict text"
    typer.echo(f"{'check':14} {verdict}: perplexity {check.perplexity:.1f}, shuffled {check.shuffled:.1f}")
    typer.echo(f"{'speed here':14} reads {check.read:,.0f} tokens a second, writes {check.written:,.1f}")


def _measured(check: TextCheck) -> dict[str, Any]:
    return {
        "predicts_text": check.predicts,
        "read_tokens_per_second": round(check.read, 1),
        "written_tokens_per_second": round(check.written, 1),
    }
