# SPDX-License-Identifier: Apache-2.0
"""Treatments by specialty: operations and other single procedures, and therapies that go on for a while."""

from __future__ import annotations

from collections.abc import Mapping

from .tables import rows

OPERATIONS: Mapping[str, tuple[str, ...]] = {
    "general": rows("""
        appendectomy=appy, cholecystectomy=chole, hernia repair, tonsillectomy, hysterectomy,
        cataract surgery, septoplasty
    """),
    "cardiology": rows("""
        coronary artery bypass grafting=CABG, pacemaker placement=PPM, cardioversion=DCCV,
        stent placement=PCI, catheter ablation, aortic valve replacement=AVR,
        cardiac catheterization=cath, balloon angioplasty=PTCA, mitral valve repair=MVR
    """),
    "pulmonology": rows("""
        intubation, thoracentesis, chest tube placement, left lower lobectomy=LLL lobectomy,
        lung volume reduction=LVRS, tracheostomy=trach, pleurodesis, mediastinoscopy
    """),
    "endocrinology": rows("""
        thyroidectomy, radioactive iodine ablation=RAI, parathyroidectomy, gastric bypass,
        laser photocoagulation, adrenalectomy, transsphenoidal surgery=TSS, toe amputation
    """),
    "oncology": rows("""
        mastectomy, lumpectomy, stem cell transplant=SCT, port placement, right hemicolectomy,
        radical prostatectomy, wide excision, axillary dissection=ALND, debulking surgery,
        partial nephrectomy
    """),
    "gastroenterology": rows("""
        ERCP, variceal banding, paracentesis, bowel resection, colostomy, liver transplantation=OLT,
        feeding tube placement=PEG, polypectomy, fundoplication, hemorrhoid banding
    """),
    "nephrology": rows("""
        kidney transplantation=DDRT, AV fistula creation=AVF, ureteral stent placement,
        lithotripsy=ESWL, cystoscopy, nephrostomy tube placement, dialysis catheter placement
    """),
    "orthopaedics": rows("""
        total knee arthroplasty=TKA, total hip arthroplasty=THA,
        open reduction and internal fixation=ORIF, arthroscopy=scope, spinal fusion,
        carpal tunnel release=CTR, epidural steroid injection=ESI, rotator cuff repair=RCR,
        meniscectomy, laminectomy
    """),
    "psychiatry": rows("""
        electroconvulsive therapy=ECT, inpatient detoxification=detox,
        transcranial magnetic stimulation=TMS, residential treatment
    """),
    "neurology": rows("""
        thrombectomy, deep brain stimulation=DBS, craniotomy, carotid endarterectomy=CEA,
        shunt placement=VPS, aneurysm coiling, occipital nerve block, burr hole drainage
    """),
    "infection": rows("""
        incision and drainage=I&D, debridement, tonsillectomy, PICC line placement=PICC,
        sinus surgery=FESS, toe amputation, ear tube placement, valve replacement
    """),
}

THERAPIES: Mapping[str, tuple[str, ...]] = {
    "general": rows("""
        physical therapy=PT, intravenous fluids=IVF, supplemental oxygen=O2, dietary counseling,
        smoking cessation
    """),
    "cardiology": rows("""
        cardiac rehabilitation=cardiac rehab, compression stockings=TEDs, low-salt diet,
        anticoagulation=AC, rate control
    """),
    "pulmonology": rows("""
        CPAP, pulmonary rehabilitation=pulm rehab, nebulizer treatment=nebs, home oxygen=home O2,
        chest physiotherapy
    """),
    "endocrinology": rows("""
        diabetic education, insulin pump therapy, diabetic diet, foot care, carbohydrate counting
    """),
    "oncology": rows("""
        chemotherapy=chemo, radiation therapy=XRT, palliative care, hormonal therapy,
        blood transfusion=PRBCs
    """),
    "gastroenterology": rows("""
        bowel rest=NPO, gluten-free diet=GFD, parenteral nutrition=TPN, clear liquid diet=CLD,
        tube feeding
    """),
    "nephrology": rows("""
        hemodialysis=HD, peritoneal dialysis, fluid restriction, low-potassium diet, bladder training
    """),
    "orthopaedics": rows("""
        casting, splinting, knee brace, home exercises=HEP, aquatic therapy, ice packs=ice,
        sling immobilization
    """),
    "psychiatry": rows("""
        cognitive behavioral therapy=CBT, psychotherapy, group therapy, family counseling,
        mindfulness training
    """),
    "neurology": rows("""
        speech therapy, occupational therapy=OT, gait training, plasma exchange=PLEX,
        vestibular rehabilitation
    """),
    "infection": rows("""
        wound care, contact isolation, dressing changes, sitz baths, antibiotic therapy=abx,
        saline rinses
    """),
}
