# SPDX-License-Identifier: Apache-2.0
"""`medflare knowledge`: what a hospital's knowledge graph holds, before a sketch of it leaves (DDCS)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from medflare.cli.output import JSON_OPTION, plain_errors, print_json

if TYPE_CHECKING:
    from medflare.core.sketch import Sketch
    from medflare.data.settings.knowledge import KnowledgeConfig
    from medflare.data.settings.site import SiteConfig
    from medflare.knowledge.triples import Triple

app = typer.Typer(help="A site's knowledge graph and its sketch, at the site.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """A site's knowledge graph and its sketch, at the site."""


@app.command()
@plain_errors
def inspect(
    site_file: Path = typer.Argument(
        Path("local/site.yaml"), metavar="[SITE.YAML]", help="The site's own file."
    ),
    site: str | None = typer.Option(None, "--site", help="Which site of a file that describes several."),
    examples: int = typer.Option(10, "--examples", min=0, help="Triples to show; they may quote your texts."),
    out: Path | None = typer.Option(None, "--sketch", help="Write the sketch there, as it would leave."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Builds the graph as a run would and says what is in it. Nothing is sent.

    [bold]Example[/bold]: medflare knowledge inspect local/site.yaml --examples 5
    """
    from medflare.core.errors import ConfigError
    from medflare.knowledge.minhash import Sketcher
    from medflare.knowledge.sketch_key import SketchKey

    settings = _site(site_file, site)
    config = settings.knowledge
    if config is None:
        raise ConfigError(f"{site_file}: site '{settings.name}' has no block `knowledge`.")
    key = SketchKey.read(config.key, config.context)
    graph, texts = _graph(settings)
    sketch = Sketcher(key, config.hashes, config.kind).sketch(graph)
    if out is not None:
        out.write_bytes(sketch.to_bytes())
    facts = _facts(graph, sketch, texts) | {"site": settings.name}
    facts["examples"] = _examples(graph, _names(config), examples)
    if as_json:
        print_json(facts)
    else:
        _show(facts)


@app.command()
@plain_errors
def key(
    file: Path = typer.Argument(..., help="File to make; it must not be there yet."),
) -> None:
    """Makes the secret that all hospitals share and the server must never see, readable by you alone.

    Give it to the other hospitals by a way that the server is no part of.

    [bold]Example[/bold]: medflare knowledge key local/sketch.key
    """
    import os

    from medflare.core.errors import ConfigError
    from medflare.knowledge.sketch_key import SketchKey

    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{file}: is there already. Sketches made with another key cannot be compared; name another file."
        ) from None
    with os.fdopen(descriptor, "w", encoding="ascii") as stream:
        stream.write(SketchKey.new_secret().hex() + "\n")
    typer.echo(f"{file}: made. Give it to the other hospitals, never to the server.")


@app.command()
@plain_errors
def compare(
    one: Path = typer.Argument(..., help="A sketch, as `inspect --sketch` writes it."),
    other: Path = typer.Argument(..., help="Another one."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Print what a server learns from two sketches: how similar their graphs are, and nothing else.

    [bold]Example[/bold]: medflare knowledge compare site-1.sketch site-2.sketch
    """
    from medflare.knowledge.sketches import estimated_jaccard, jaccard_interval

    first, second = _read(one), _read(other)
    jaccard = estimated_jaccard(first, second)
    low, high = (0.0, 0.0) if first.empty or second.empty else jaccard_interval(jaccard, len(first.values))
    facts = {"jaccard": jaccard, "low": low, "high": high, "distance": 1 - jaccard}
    if as_json:
        print_json(facts)
    else:
        typer.echo(
            f"Jaccard similarity {jaccard:.3f} (95 %: {low:.3f} to {high:.3f}), distance {1 - jaccard:.3f}"
        )


def _site(file: Path, name: str | None) -> SiteConfig:
    from medflare.core.errors import ConfigError
    from medflare.data.settings.site import load_site, load_site_file

    if name is None:
        names = sorted(load_site_file(file))
        if len(names) > 1:
            raise ConfigError(f"{file}: describes {', '.join(names)}; say which with --site.")
        name = names[0]
    return load_site(file, name)


def _graph(site: SiteConfig) -> tuple[Mapping[Triple, float], int]:
    """Return the graph, and of how many texts it was made."""
    from medflare.data.load import load_cohort
    from medflare.knowledge.cohort_texts import knowledge_texts
    from medflare.knowledge.site_graph import site_graph

    assert site.knowledge is not None
    texts = knowledge_texts(load_cohort(site))
    return site_graph(site.knowledge, texts, site.backbone), len(texts)


def _read(file: Path) -> Sketch:
    from medflare.core.errors import DataError
    from medflare.core.sketch import Sketch

    try:
        return Sketch.from_bytes(file.read_bytes(), str(file))
    except OSError as error:
        raise DataError(f"{file}: cannot be read as a sketch ({type(error).__name__}).") from None


def _facts(graph: Mapping[Triple, float], sketch: Sketch, texts: int) -> dict[str, Any]:
    relations = Counter(triple.relation for triple in graph)
    return {
        "texts": texts,
        "triples": len(graph),
        "concepts": len({name for triple in graph for name in (triple.head, triple.tail)}),
        "relations": dict(relations.most_common()),
        "sketch": {
            "bytes": len(sketch.to_bytes()),
            "hashes": len(sketch.values),
            "kind": sketch.kind,
            "empty": sketch.empty,
            "key": sketch.fingerprint.hex()[:8],
        },
    }


def _names(config: KnowledgeConfig) -> dict[str, str]:
    """Return concept, as triples name it -> its preferred name in the vocabulary."""
    from medflare.knowledge.triples import canonical
    from medflare.knowledge.vocabulary import read_concepts

    return {canonical(concept.concept_id): concept.names[0] for concept in read_concepts(config.vocabulary)}


def _examples(graph: Mapping[Triple, float], names: Mapping[str, str], count: int) -> list[dict[str, Any]]:
    """Return the most confident triples, in order of name among equals."""
    ordered = sorted(graph.items(), key=lambda item: (-item[1], item[0]))[:count]
    return [
        {
            "head": names.get(triple.head, triple.head),
            "relation": triple.relation,
            "tail": names.get(triple.tail, triple.tail),
            "confidence": round(confidence, 3),
        }
        for triple, confidence in ordered
    ]


def _show(facts: Mapping[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console, sketch = Console(), facts["sketch"]
    console.print(
        f"{escape(facts['site'] or 'this site')}: {facts['triples']:,} triples of {facts['concepts']:,} "
        f"concepts from {facts['texts']:,} texts"
    )
    table = Table("relation", "triples", box=SIMPLE_HEAD)
    for relation, number in facts["relations"].items():
        table.add_row(escape(relation), f"{number:,}")
    console.print(table)
    if facts["examples"]:
        shown = Table("head", "relation", "tail", "confidence", box=SIMPLE_HEAD)
        shown.title, shown.title_justify = "examples; they stay here", "left"
        for triple in facts["examples"]:
            shown.add_row(*(escape(str(value)) for value in triple.values()))
        console.print(shown)
    console.print(
        f"what would leave: {sketch['bytes']:,} bytes, {sketch['hashes']} numbers of 32 bits "
        f"({sketch['kind']}), made with key {sketch['key']}"
        + ("; the graph is empty" if sketch["empty"] else ""),
        soft_wrap=True,
    )
