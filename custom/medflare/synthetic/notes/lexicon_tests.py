# SPDX-License-Identifier: Apache-2.0
"""Tests by specialty.

LABS: `names; lowest highest digits; unit; reference range`.
"""

from __future__ import annotations

from collections.abc import Mapping

from .tables import lines, rows

LABS: Mapping[str, tuple[str, ...]] = {
    "general": lines("""
        hemoglobin=Hgb=Hb; 7.5 16.5 1; g/dL; 12.0-16.0
        white blood cell count=WBC=white count; 2.5 19.0 1; K/uL; 4.0-11.0
        platelet count=plt=platelets; 60 450 0; K/uL; 150-400
        sodium=Na; 124 149 0; mmol/L; 135-145
        potassium=K; 2.9 6.1 1; mEq/L; 3.5-5.1
        creatinine=Cr; 0.6 4.8 1; mg/dL; 0.6-1.2
        glucose=gluc; 62 340 0; mg/dL; 70-99
        hematocrit=Hct; 24 48 1; %; 36-46
        C-reactive protein=CRP; 1 190 0; mg/L; 0-5
    """),
    "cardiology": lines("""
        troponin I=trop; 0.01 6.4 2; ng/mL; 0.00-0.04
        brain natriuretic peptide=BNP; 40 2900 0; pg/mL; 0-100
        LDL cholesterol=LDL; 48 210 0; mg/dL; 0-100
        INR; 1.0 4.6 1; ; 2.0-3.0
        D-dimer; 0.2 6.8 1; mg/L; 0.0-0.5
        creatine kinase=CK; 40 1900 0; U/L; 30-200
        digoxin level=dig level; 0.4 2.9 1; ng/mL; 0.8-2.0
    """),
    "pulmonology": lines("""
        pH; 7.18 7.52 2; ; 7.35-7.45
        pCO2; 28 82 0; mmHg; 35-45
        lactate; 0.6 5.8 1; mmol/L; 0.5-2.0
        FEV1; 24 98 0; %; 80-120
        procalcitonin=PCT; 0.1 9.5 1; ng/mL; 0.0-0.5
        theophylline level; 4 24 0; mcg/mL; 10-20
    """),
    "endocrinology": lines("""
        hemoglobin A1c=A1c=HbA1c; 5.2 12.8 1; %; 4.0-5.6
        TSH; 0.02 38.0 2; mIU/L; 0.40-4.50
        free T4=fT4; 0.3 4.2 1; ng/dL; 0.8-1.8
        fasting glucose=FBG; 64 290 0; mg/dL; 70-99
        vitamin D level=vit D; 8 62 0; ng/mL; 30-100
        morning cortisol=AM cortisol; 1.2 38.0 1; mcg/dL; 6.0-18.0
        parathyroid hormone=PTH; 9 240 0; pg/mL; 15-65
    """),
    "oncology": lines("""
        absolute neutrophil count=ANC; 0.1 7.5 1; K/uL; 1.5-8.0
        PSA; 0.1 48.0 1; ng/mL; 0.0-4.0
        CEA; 1.0 94.0 1; ng/mL; 0.0-3.0
        CA-125; 8 720 0; U/mL; 0-35
        lactate dehydrogenase=LDH; 120 980 0; U/L; 140-280
        uric acid; 3.0 11.8 1; mg/dL; 3.5-7.2
        M-protein=M-spike; 0.2 4.9 1; g/dL; 0.0-0.1
    """),
    "gastroenterology": lines("""
        ALT; 12 640 0; U/L; 7-56
        AST; 14 580 0; U/L; 10-40
        total bilirubin=T bili; 0.3 12.4 1; mg/dL; 0.1-1.2
        lipase; 20 2400 0; U/L; 0-160
        albumin=alb; 1.9 4.8 1; g/dL; 3.5-5.0
        alkaline phosphatase=ALP; 44 510 0; U/L; 44-147
        ferritin; 4 620 0; ng/mL; 24-336
    """),
    "nephrology": lines("""
        BUN; 8 96 0; mg/dL; 7-20
        estimated GFR=eGFR; 8 92 0; mL/min; 60-120
        phosphorus=phos; 2.1 8.4 1; mg/dL; 2.5-4.5
        bicarbonate=bicarb; 11 31 0; mmol/L; 22-29
        urine protein=uprot; 0.1 8.6 1; g/day; 0.0-0.2
        magnesium=Mg; 1.1 2.9 1; mg/dL; 1.7-2.2
    """),
    "orthopaedics": lines("""
        sedimentation rate=ESR; 4 98 0; mm/h; 0-20
        vitamin D level=vit D; 8 62 0; ng/mL; 30-100
        synovial white count; 200 84000 0; cells/uL; 0-200
        rheumatoid factor=RF; 4 120 0; IU/mL; 0-14
        T-score; -3.9 -0.4 1; ; above -1.0
    """),
    "psychiatry": lines("""
        lithium level=Li level; 0.2 1.9 1; mEq/L; 0.6-1.2
        valproate level=VPA level; 22 138 0; mcg/mL; 50-100
        PHQ-9 score=PHQ-9; 3 26 0; ; 0-4
        GAD-7 score=GAD-7; 2 21 0; ; 0-4
        TSH; 0.02 18.0 2; mIU/L; 0.40-4.50
        blood alcohol level=BAL; 12 310 0; mg/dL; 0-10
    """),
    "neurology": lines("""
        vitamin B12 level=B12; 110 890 0; pg/mL; 200-900
        phenytoin level; 3 31 0; mcg/mL; 10-20
        MMSE score=MMSE; 11 30 0; ; 27-30
        NIH stroke scale=NIHSS; 0 22 0; ; 0
        CSF protein; 22 190 0; mg/dL; 15-45
        opening pressure=OP; 9 38 0; cm H2O; 10-20
    """),
    "infection": lines("""
        CD4 count=CD4; 40 910 0; cells/uL; 500-1500
        viral load=VL; 20 98000 0; copies/mL; 0-20
        procalcitonin=PCT; 0.1 14.0 1; ng/mL; 0.0-0.5
        lactate; 0.6 6.4 1; mmol/L; 0.5-2.0
        vancomycin trough=vanc trough; 4 29 1; mcg/mL; 10-20
        band count=bands; 0 28 0; %; 0-10
    """),
}

STUDIES: Mapping[str, tuple[str, ...]] = {
    "general": rows("""
        urinalysis=UA, complete blood count=CBC, basic metabolic panel=BMP, electrocardiogram=EKG=ECG,
        lipid panel=FLP, liver panel=LFTs, chest x-ray=CXR, coagulation panel=coags
    """),
    "cardiology": rows("""
        stress test=ETT, tilt table test, cardiac enzyme panel, telemetry, ankle-brachial index=ABI,
        echocardiogram=echo, event monitor
    """),
    "pulmonology": rows("""
        sputum culture, sleep study=PSG, six-minute walk test=6MWT, arterial blood gas=ABG,
        methacholine challenge, D-dimer assay, peak flow
    """),
    "endocrinology": rows("""
        oral glucose tolerance test=OGTT, dexamethasone suppression test=DST, monofilament test,
        fine needle aspiration=FNA, thyroid panel, urine microalbumin, hormone panel
    """),
    "oncology": rows("""
        bone scan, flow cytometry, sentinel node biopsy=SLNB, tumor marker panel, genetic test,
        serum electrophoresis=SPEP, Pap smear
    """),
    "gastroenterology": rows("""
        stool culture, hydrogen breath test, capsule endoscopy, hepatitis panel, stool guaiac test=FOBT,
        celiac panel, colonoscopy=c-scope
    """),
    "nephrology": rows("""
        urine sediment, 24-hour urine collection=24h urine, urine culture=UCx, complement panel,
        ANCA titer, renal ultrasound=renal US
    """),
    "orthopaedics": rows("""
        Lachman test, straight leg raise=SLR, joint aspiration, McMurray test, Phalen test,
        Spurling test, neurovascular examination, impingement test
    """),
    "psychiatry": rows("""
        urine drug screen=UDS, toxicology screen=tox screen, cognitive testing, pregnancy test=UPT,
        thyroid panel, mood questionnaire
    """),
    "neurology": rows("""
        lumbar puncture=LP, Romberg test, visual evoked potentials=VEP, EEG, gait testing,
        cranial nerve examination, oligoclonal band assay
    """),
    "infection": rows("""
        rapid strep test=RST, monospot, PPD, hepatitis panel, Gram stain, respiratory viral panel=RVP,
        stool toxin assay, Lyme titer
    """),
}
"""Tests that are told with a result in a word ("negative"); those with findings are in `lexicon_imaging`."""
