# SPDX-License-Identifier: Apache-2.0
"""Elements of a DICOM header that may tell who somebody is: all but those on a list of harmless ones."""

from __future__ import annotations

from typing import Any

from medflare.identifiers.rules import RuleDetector

_HARMLESS = """
    SpecificCharacterSet ImageType SOPClassUID Modality PresentationIntentType Manufacturer
    ManufacturerModelName BodyPartExamined ViewPosition PatientPosition PatientOrientation Laterality
    ImageLaterality PatientSex SamplesPerPixel PhotometricInterpretation PlanarConfiguration Rows
    Columns BitsAllocated BitsStored HighBit PixelRepresentation PixelSpacing ImagerPixelSpacing
    PixelAspectRatio SmallestImagePixelValue LargestImagePixelValue WindowCenter WindowWidth
    RescaleIntercept RescaleSlope RescaleType VOILUTFunction
    PixelIntensityRelationship PixelIntensityRelationshipSign LossyImageCompression
    LossyImageCompressionRatio LossyImageCompressionMethod BurnedInAnnotation RecognizableVisualFeatures
    KVP Exposure ExposureTime XRayTubeCurrent ExposureInuAs DistanceSourceToDetector
    DistanceSourceToPatient FilterType Grid DetectorType NumberOfFrames SliceThickness
    SpacingBetweenSlices ImagePositionPatient ImageOrientationPatient InstanceNumber SeriesNumber
    AcquisitionNumber PatientIdentityRemoved PixelData ConversionType
"""
HARMLESS = frozenset(_HARMLESS.split())
"""Keywords of elements that describe the picture and the exposure."""
BURNED_IN = "BurnedInAnnotation"
FREE_TEXT = frozenset({"LO", "SH", "LT", "ST", "UT", "UC"})
"""Value representations in which anything can be written."""
LONGEST = 64
"""Characters of a free text that can be harmless: those of a manufacturer's or a model's name."""


def identifying_tags(header: Any) -> list[str]:
    """Return the keywords of filled elements that may identify a person, `private` for those of a vendor.

    Args:
        header: a pydicom Dataset; sequences are looked into.

    An element of HARMLESS that holds free text, as a manufacturer's name, is one of them where the text is
    long or the rules of texts find something in it.
    """
    names = set[str]()
    for element in header.iterall():
        if element.VR == "SQ" or element.value in (None, "", b""):
            continue
        if element.tag.is_private:
            names.add("private")
        elif element.keyword not in HARMLESS or (element.VR in FREE_TEXT and _tells(element.value)):
            names.add(element.keyword or str(element.tag))
    return sorted(names)


def _tells(value: Any) -> bool:
    """Return whether a free text, or one of several, is more than a short name of a thing."""
    texts = [str(value)] if isinstance(value, str) else [str(part) for part in value]
    return any(len(text) > LONGEST or RuleDetector().find(text) for text in texts)


def says_burned_in(header: Any) -> bool:
    """Return whether the header says that the pixels hold text of a patient."""
    return str(header.get(BURNED_IN, "") or "").upper() == "YES"
