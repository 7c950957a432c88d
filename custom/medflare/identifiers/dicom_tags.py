# SPDX-License-Identifier: Apache-2.0
"""Elements of a DICOM header that may tell who somebody is: all but those on a list of harmless ones."""

from __future__ import annotations

from typing import Any

_HARMLESS = """
    SpecificCharacterSet ImageType SOPClassUID Modality PresentationIntentType Manufacturer
    ManufacturerModelName BodyPartExamined ViewPosition PatientPosition PatientOrientation Laterality
    ImageLaterality PatientSex SamplesPerPixel PhotometricInterpretation PlanarConfiguration Rows
    Columns BitsAllocated BitsStored HighBit PixelRepresentation PixelSpacing ImagerPixelSpacing
    PixelAspectRatio SmallestImagePixelValue LargestImagePixelValue WindowCenter WindowWidth
    WindowCenterWidthExplanation RescaleIntercept RescaleSlope RescaleType VOILUTFunction
    PixelIntensityRelationship PixelIntensityRelationshipSign LossyImageCompression
    LossyImageCompressionRatio LossyImageCompressionMethod BurnedInAnnotation RecognizableVisualFeatures
    KVP Exposure ExposureTime XRayTubeCurrent ExposureInuAs DistanceSourceToDetector
    DistanceSourceToPatient FilterType Grid DetectorType NumberOfFrames SliceThickness
    SpacingBetweenSlices ImagePositionPatient ImageOrientationPatient InstanceNumber SeriesNumber
    AcquisitionNumber PatientIdentityRemoved DeidentificationMethod PixelData ConversionType
"""
HARMLESS = frozenset(_HARMLESS.split())
"""Keywords of elements that describe the picture and the exposure."""
BURNED_IN = "BurnedInAnnotation"


def identifying_tags(header: Any) -> list[str]:
    """Return the keywords of filled elements that may identify a person, `private` for those of a vendor.

    Args:
        header: a pydicom Dataset; sequences are looked into.
    """
    names = set[str]()
    for element in header.iterall():
        if element.VR == "SQ" or element.value in (None, "", b""):
            continue
        if element.tag.is_private:
            names.add("private")
        elif element.keyword not in HARMLESS:
            names.add(element.keyword or str(element.tag))
    return sorted(names)


def says_burned_in(header: Any) -> bool:
    """Return whether the header says that the pixels hold text of a patient."""
    return str(header.get(BURNED_IN, "") or "").upper() == "YES"
