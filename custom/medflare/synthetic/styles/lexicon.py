# SPDX-License-Identifier: Apache-2.0
"""The words of the house styles: how six schools of reporting name the same things.

Phrases are noun phrases with slots: {sev} and {size} degree words, {a} article, {side} right/left/bilateral,
{loc} "the right lower zone", {s} and {y} plural endings when bilateral, {kind} the device. "|" separates
alternatives, the first of which is the habit. A negative that ends in "." is a sentence of its own, any other
is a noun that goes into a list ("No pleural effusion or pneumothorax.").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from medflare.core.conditions import CONDITIONS

ABNORMAL = CONDITIONS[:13]
Words = Mapping[str, tuple[str, str]]  # condition -> (positive noun phrase, negative)


def _words(*rows: tuple[str, str]) -> Words:
    return dict(zip(ABNORMAL, rows, strict=True))


VOCABULARIES: Mapping[str, Words] = {
    "american": _words(
        ("{sev} mediastinal widening", "Mediastinal contours are within normal limits."),
        ("{sev} cardiomegaly", "Heart size is within normal limits."),
        ("{sev} hazy opacit{y} in {loc}", "focal opacity"),
        ("{a}{size} nodule in {loc}", "pulmonary nodule"),
        ("{sev} pulmonary edema|{sev} interstitial edema", "pulmonary edema"),
        ("{sev} consolidation in {loc}", "focal consolidation"),
        ("{sev} multifocal pneumonia in {loc}", "pneumonia"),
        ("{sev} {side} basilar atelectasis|{sev} {side} linear atelectasis", "atelectasis"),
        ("{a}{size} {side} pneumothorax", "pneumothorax"),
        ("{a}{size} {side} pleural effusion{s}", "pleural effusion"),
        ("{sev} {side} pleural thickening", "pleural thickening"),
        ("{a}{sev} displaced {side} rib fracture", "displaced rib fracture"),
        ("{a}{kind}", "support devices"),
    ),
    "terse": _words(
        ("wide mediastinum, {sev}", "Mediastinum normal."),
        ("enlarged heart, {sev}", "Heart normal size."),
        ("{loc} haze, {sev} opacity", "opacity"),
        ("{loc} nodule, {size}", "nodule"),
        ("edema, {sev}", "edema"),
        ("{loc} consolidation, {sev}", "consolidation"),
        ("{loc} pneumonia, {sev}", "pneumonia"),
        ("{side} base atelectasis, {sev}|{side} plate atelectasis, {sev}", "atelectasis"),
        ("{side} pneumothorax, {size}", "pneumothorax"),
        ("{side} effusion, {size}", "effusion"),
        ("{side} pleural thickening, {sev}", "pleural thickening"),
        ("{side} rib fracture, {sev} step", "fracture"),
        ("{kind} in situ", "lines or tubes"),
    ),
    "british": _words(
        ("{sev} widening of the mediastinum", "The mediastinal outline is unremarkable."),
        (
            "{sev} enlargement of the cardiac silhouette|{sev} cardiomegaly",
            "The cardiac silhouette is not enlarged.",
        ),
        ("{sev} ill defined opacification of {loc}", "opacification"),
        ("{a}{size} rounded lung lesion projected over {loc}", "discrete lung lesion"),
        ("{sev} perihilar pulmonary oedema|{sev} pulmonary oedema", "pulmonary oedema"),
        ("{sev} consolidation within {loc}", "consolidation"),
        ("{sev} bronchopneumonia involving {loc}", "bronchopneumonia"),
        ("{sev} volume loss with plate atelectasis at the {side} base{s}", "lobar collapse"),
        ("{a}{size} pneumothorax on the {side}", "pneumothorax"),
        ("{a}{size} volume of pleural fluid on the {side}", "pleural fluid"),
        ("{sev} pleural thickening on the {side}", "pleural plaque"),
        ("{a}{sev} stepped rib fracture on the {side}", "rib fracture"),
        ("{a}{kind} in satisfactory position", "indwelling line or tube"),
    ),
    "academic": _words(
        ("{sev} prominence of the cardiomediastinal contour", "Cardiomediastinal contour is unremarkable."),
        ("{sev} enlargement of the heart", "Cardiac size is normal."),
        ("{sev} airspace opacit{y} of {loc}", "airspace opacity"),
        ("{size} mass-like lesion of {loc}", "mass or nodule"),
        ("{sev} alveolar edema", "alveolar edema"),
        ("{sev} lobar consolidation of {loc}", "lobar consolidation"),
        ("{sev} infectious pneumonia of {loc}", "infectious pneumonia"),
        ("{sev} {side} subsegmental atelectasis", "subsegmental atelectasis"),
        ("{size} {side} apical pneumothorax", "pneumothorax"),
        ("{size} {side} layering effusion{s}", "layering effusion"),
        ("{sev} {side} pleural scarring", "pleural scarring"),
        ("{sev} {side} costal fracture", "osseous fracture"),
        ("{kind} with tip in standard position", "support apparatus"),
    ),
    "itemised": _words(
        ("{sev} enlarged mediastinal contour", "Mediastinal contour normal."),
        ("{sev} cardiac enlargement|{sev} increase in heart size", "Heart size normal."),
        ("{sev} infiltrate in {loc}", "infiltrate"),
        ("{size} round nodule in {loc}", "nodules"),
        ("{sev} interstitial edema", "interstitial edema"),
        ("{sev} area of consolidation in {loc}", "consolidation"),
        ("{sev} patchy pneumonia in {loc}", "pneumonia"),
        ("{sev} {side} basal atelectasis", "atelectasis"),
        ("{size} {side} pneumothorax", "pneumothorax"),
        ("{size} {side} effusion{s}", "effusion"),
        ("{sev} {side} pleural plaque{s}", "pleural plaques"),
        ("{side} rib fracture with {sev} displacement", "fracture"),
        ("{kind} present", "devices"),
    ),
    "continental": _words(
        ("{sev} widening of the upper mediastinum", "The mediastinum is of normal width."),
        ("{sev} dilatation of the heart, cardiomegaly", "The heart is not dilated, no cardiomegaly."),
        ("{sev} diffuse opacit{y} projecting on {loc}", "diffuse opacity"),
        ("{a}{size} round focus (nodule) in {loc}", "round focus or nodule"),
        ("{sev} pulmonary edema of congestive type", "edema"),
        ("{sev} dense consolidation projecting on {loc}", "dense consolidation"),
        ("{sev} signs of pneumonia in {loc}", "signs of pneumonia"),
        ("{sev} dystelectasis and atelectasis in the {side} basal field{s}", "basal atelectasis"),
        ("{a}{size} pneumothorax of the {side} side{s}", "pneumothorax"),
        ("{a}{size} pleural effusion of the {side} side{s}", "pleural effusion"),
        ("{sev} pleural thickening of the {side} side", "pleural thickening"),
        ("{sev} dislocated rib fracture of the {side} side", "rib fracture"),
        ("{a}{kind} with regular course", "foreign material or device"),
    ),
}

DEGREES: Mapping[str, tuple[tuple[str, str, str], tuple[str, str, str]]] = {
    # vocabulary -> ({sev} mild, moderate, severe), ({size} the same three)
    "american": (("mild", "moderate", "severe"), ("small", "moderate", "large")),
    "terse": (("slight", "moderate", "severe"), ("small", "medium", "large")),
    "british": (("slight", "moderate", "marked"), ("small", "moderate", "substantial")),
    "academic": (("minimal", "moderate", "extensive"), ("small", "moderate-sized", "large")),
    "itemised": (("mild", "moderate", "marked"), ("small", "moderate", "large")),
    "continental": (("discrete", "moderate", "pronounced"), ("small", "medium-sized", "extensive")),
}


def _details(*clauses: str) -> Mapping[str, str]:
    return dict(zip(ABNORMAL[:12], clauses, strict=True))


DETAILS: Mapping[str, Mapping[str, str]] = {
    # vocabulary -> condition -> what is added when moderate or severe
    "american": _details(
        ", measuring more than 8 cm at the arch",
        " with a cardiothoracic ratio above 0.5",
        " obscuring the bronchovascular markings",
        " with smooth margins",
        " with indistinct pulmonary vessels",
        " with air bronchograms",
        " in a patchy distribution",
        " with elevation of the hemidiaphragm",
        " with a visible visceral pleural edge",
        " with blunting of the costophrenic angle",
        " along the chest wall",
        " with a cortical step off",
    ),
    "terse": _details(
        ", arch wide",
        ", CTR over half",
        ", vessels blurred",
        ", smooth edge",
        ", vessels indistinct",
        ", air bronchograms",
        ", patchy",
        ", hemidiaphragm high",
        ", pleural edge seen",
        ", angle blunt",
        ", chest wall",
        ", cortex broken",
    ),
    "british": _details(
        " with effacement of the aortic outline",
        " with a cardiothoracic ratio of more than half",
        " partly obscuring the vascular markings",
        " with a well circumscribed margin",
        " with upper lobe blood diversion",
        " containing air bronchograms",
        " in several foci",
        " with a raised hemidiaphragm",
        " with a visible lung edge",
        " with loss of the costophrenic recess",
        " following the chest wall",
        " with cortical discontinuity",
    ),
    "academic": _details(
        " at the level of the aortic arch",
        " exceeding half of the thoracic diameter",
        " with ground-glass quality",
        " with circumscribed borders",
        " with cephalization of flow",
        " with visible bronchograms",
        " in a multifocal pattern",
        " with diaphragmatic elevation",
        " with a retracted lung margin",
        " with a meniscus sign",
        " of chronic appearance",
        " with cortical offset",
    ),
    "itemised": _details(
        " (wide at arch)",
        " (CTR above 50 percent)",
        " (vessels obscured)",
        " (smooth contour)",
        " (redistribution)",
        " (bronchograms seen)",
        " (multiple foci)",
        " (raised diaphragm)",
        " (lung edge visible)",
        " (blunt angle)",
        " (lateral wall)",
        " (cortical step)",
    ),
    "continental": _details(
        " with convex contour",
        " with CTR beyond the norm",
        " masking the vessels",
        " with sharp border",
        " with cranialisation of vessels",
        " with positive bronchogram",
        " of confluent type",
        " with elevated diaphragm",
        " with detached lung border",
        " with occluded sinus",
        " of band-like form",
        " with cortical interruption",
    ),
}


def location(vocabulary: str, side: str, zone: str) -> str:
    """Where a lung finding lies, in the words of one vocabulary: "the left lower lobe", "both mid zones"."""
    if vocabulary in ("american", "academic"):
        if zone == "mid":
            middle = {"right": "the right middle lobe", "left": "the lingula"}
            return middle.get(side, "both mid lungs")
        return f"both {zone} lobes" if side == "bilateral" else f"the {side} {zone} lobe"
    noun = {"terse": "zone", "british": "zone", "itemised": "lung", "continental": "field"}[vocabulary]
    zone = "middle" if zone == "mid" and vocabulary == "continental" else zone
    if vocabulary == "terse":
        return f"{side} {zone} zone"
    return f"both {zone} {noun}s" if side == "bilateral" else f"the {side} {zone} {noun}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """Sentences around the noun phrases: {np}, {bare} without article, {list} of nouns joined by "or"."""

    positive: str
    uncertain: str
    negative: str
    resolved: str
    removed: str  # for devices
    normal: str  # what the impression or closing says when nothing is found
    changes: Mapping[str, str]  # "new" ... -> clause appended to the sentence


def _changes(new: str, increased: str, decreased: str, unchanged: str) -> Mapping[str, str]:
    return {"new": new, "increased": increased, "decreased": decreased, "unchanged": unchanged}


FRAMES: Mapping[str, Frames] = {
    "american": Frames(
        positive="There is {np}.|{np} is present.",
        uncertain="Possible {bare}.|There may be {np}.",
        negative="There is no {list}.|No {list} is seen.",
        resolved="The previously seen {bare} has resolved.",
        removed="The previously seen {bare} has been removed.",
        normal="No acute cardiopulmonary abnormality.|No acute process.",
        changes=_changes(
            "new",
            "increased since the prior study",
            "decreased since the prior study",
            "unchanged from the prior study",
        ),
    ),
    "terse": Frames(
        positive="{np}.|{np} seen.",
        uncertain="Questionable {bare}.|Possible {bare}.",
        negative="No {list}.|Without {list}.",
        resolved="Resolved {bare}.",
        removed="{bare} removed.",
        normal="Otherwise unremarkable chest.|Unremarkable film.",
        changes=_changes("new", "worse", "better", "same"),
    ),
    "british": Frames(
        positive="There is {np}.|{np} is noted.",
        uncertain="There is possible {bare}.|The appearances raise the possibility of {np}.",
        negative="No {list} is demonstrated.|There is no {list}.",
        resolved="The {bare} shown previously has resolved.",
        removed="The {bare} shown previously has been removed.",
        normal="No significant abnormality is demonstrated.|Normal appearances for age.",
        changes=_changes(
            "which is new",
            "which has increased in the interval",
            "which has improved in the interval",
            "which is stable in the interval",
        ),
    ),
    "academic": Frames(
        positive="{np}.|{np} is seen.",
        uncertain="Findings may represent {np}.|Equivocal {bare}, may be present.",
        negative="No evidence of {list}.|No {list} identified.",
        resolved="Interval resolution of {bare}.",
        removed="Interval removal of {bare}.",
        normal="No acute intrathoracic process.|Unremarkable radiograph.",
        changes=_changes("new from prior", "interval increase", "interval decrease", "stable from prior"),
    ),
    "itemised": Frames(
        positive="{np}.|{np} noted.",
        uncertain="{np} cannot be excluded.|{np} possible.",
        negative="No {list}.|No {list} seen.",
        resolved="No residual {bare}.",
        removed="{bare} removed.",
        normal="Normal examination.|Examination without findings.",
        changes=_changes("new finding", "progressive", "regressive", "unaltered"),
    ),
    "continental": Frames(
        positive="One sees {np}.|{np} is depicted.",
        uncertain="Suspected {bare}.|{np} is suspected.",
        negative="No proof of {list}.|No {list} visible.",
        resolved="Complete regression of the known {bare}, resolved.",
        removed="The known {bare} has been removed.",
        normal="Age-appropriate normal finding of the chest.|Normal chest.",
        changes=_changes(
            "newly appeared",
            "progredient in the course",
            "regredient in the course",
            "constant in the course",
        ),
    ),
}
