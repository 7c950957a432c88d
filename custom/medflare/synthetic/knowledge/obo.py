# SPDX-License-Identifier: Apache-2.0
"""Terms as an OBO file: the vocabulary that all hospitals map their words to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from medflare.synthetic.notes.tables import lines

from .world import RELATIONS, World

Terms = Sequence[tuple[str, tuple[str, ...]]]
"""(kind, names), the preferred name first."""


def terms_of(world: World) -> Terms:
    """Every disease of the world and every thing linked to one."""
    return [(kind, term.names) for kind in ("disease", *RELATIONS) for term in world.of_kind(kind)]


_CHEST = """
    enlarged cardiomediastinum / mediastinal widening / wide mediastinum / widening of the mediastinum
    + / prominence of the cardiomediastinal contour / enlarged mediastinal contour
    + / widening of the upper mediastinum
    cardiomegaly / enlarged heart / enlargement of the cardiac silhouette / enlargement of the heart
    + / cardiac enlargement / increase in heart size / dilatation of the heart
    lung opacity / opacity / haze / opacification / airspace opacity / infiltrate / diffuse opacity
    + / hazy opacity / focal opacity
    lung lesion / nodule / mass-like lesion / rounded lung lesion / round nodule / round focus
    + / pulmonary nodule / discrete lung lesion / mass
    pulmonary edema / edema / pulmonary oedema / interstitial edema / alveolar edema
    consolidation / focal consolidation / lobar consolidation / dense consolidation / area of consolidation
    pneumonia / multifocal pneumonia / bronchopneumonia / infectious pneumonia / patchy pneumonia
    + / signs of pneumonia
    atelectasis / plate atelectasis / subsegmental atelectasis / basal atelectasis / basilar atelectasis
    + / linear atelectasis / base atelectasis / dystelectasis / volume loss / lobar collapse
    pneumothorax / apical pneumothorax
    pleural effusion / effusion / pleural fluid / layering effusion
    pleural thickening / pleural scarring / pleural plaque
    rib fracture / fracture / costal fracture / displaced rib fracture / osseous fracture
    + / stepped rib fracture / dislocated rib fracture
    endotracheal tube
    central venous catheter
    pacemaker
    nasogastric tube
"""
CHEST: Terms = [("finding", tuple(name.strip() for name in line.split(" / "))) for line in lines(_CHEST)]
"""What the reports of the synthetic chests speak of, in the words of all their houses."""


def write_vocabulary(terms: Terms, file: Path) -> Path:
    """One [Term] each, other names as exact synonyms."""
    rows = ["format-version: 1.2", "ontology: medflare-synthetic", ""]
    for number, (kind, (name, *others)) in enumerate(terms, 1):
        rows += ["[Term]", f"id: MFW:{number:06d}", f"name: {name}", f"namespace: {kind}"]
        rows += [f'synonym: "{other}" EXACT []' for other in others]
        rows.append("")
    file.write_text("\n".join(rows), encoding="utf-8", newline="\n")
    return file
