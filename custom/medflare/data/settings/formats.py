# SPDX-License-Identifier: Apache-2.0
"""The formats of data sets that a site may name, and the settings of a cohort that each of them reads.

A new format is one module in `medflare.data.readers` and one line in FORMATS. Readers are named and not
imported here, because they need the settings that are validated against this table.
"""

from __future__ import annotations

from medflare.core.plugins import find_plugin

FORMATS: dict[str, frozenset[str]] = {
    "manifest": frozenset({"file", "columns", "select", "visits"}),
    "r2gen": frozenset({"file", "select"}),
    "mimic_cxr": frozenset({"select", "sections", "reports", "visits", "demographics"}),
    "iu_xray": frozenset({"select", "sections"}),
    "chexpert_plus": frozenset({"file", "columns", "select", "sections"}),
    "dicom_reports": frozenset({"file", "columns", "sections", "reports", "select", "visits"}),
    "notes_jsonl": frozenset({"file", "columns", "select", "label_map", "tasks", "annotated"}),
    "brat": frozenset({"label_map", "tasks", "annotated", "patients"}),
    "i2b2_2010": frozenset({"label_map", "tasks", "annotated", "patients"}),
    "conll": frozenset({"file", "columns", "label_map", "tasks", "annotated", "patients"}),
    "cas_xmi": frozenset({"columns", "select", "label_map", "tasks", "annotated", "patients"}),
    "label_studio": frozenset({"file", "columns", "label_map", "tasks", "annotated"}),
    "doccano": frozenset({"file", "columns", "select", "label_map", "tasks", "annotated"}),
    "prodigy": frozenset({"file", "columns", "select", "label_map", "tasks", "annotated"}),
    "omop": frozenset({"select", "label_map", "tasks", "annotated"}),
    "fhir_ndjson": frozenset({"file", "select", "tasks"}),
    "questions_jsonl": frozenset({"file", "columns", "select", "first_index"}),
    "summaries_jsonl": frozenset({"file", "columns", "select", "most_masks"}),
}
"""Format, which is also the reader's module -> the settings of OPTIONAL that it reads; others are refused."""


STUDY_FORMATS = frozenset({"manifest", "r2gen", "mimic_cxr", "iu_xray", "chexpert_plus", "dicom_reports"})
"""Those of FORMATS that hold images with reports; the others hold texts alone."""
OF_STUDIES = frozenset({"scanner", "study_images", "text_rules", "labels", "chexbert_folder"})
"""Settings of a cohort that say how images and reports are taken, whatever their format."""


def settings_of_format(name: str) -> frozenset[str] | None:
    """Return the settings of OPTIONAL that a format reads; None where there is no such format.

    The reader of another package says them in `SETTINGS`, beside its function `read`.

    Raises:
        ConfigError: the format is of a package that is not admitted here.
    """
    if name in FORMATS:
        return FORMATS[name]
    reader = find_plugin("readers", name)
    return None if reader is None else frozenset(reader.SETTINGS)


OPTIONAL = frozenset(
    {
        *("file", "columns", "select", "sections", "reports", "label_map", "tasks", "annotated"),
        *("visits", "demographics", "first_index", "most_masks", "patients"),
    }
)
"""Settings of a cohort that only some formats can obey."""
