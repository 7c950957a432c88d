# SPDX-License-Identifier: Apache-2.0
"""What has to be ruled out and the examination that does: `problem | examination`."""

from __future__ import annotations

from collections.abc import Mapping

from .tables import lines

SUSPICIONS: Mapping[str, tuple[str, ...]] = {
    "general": lines("""
        _thyroid_ disease | TSH
        dehydration | basic metabolic panel=BMP
        _urinary tract_ infection=UTI | urinalysis=UA
        anemia | complete blood count=CBC
        pneumonia=PNA | chest x-ray=CXR
        vitamin deficiency | B12 level
    """),
    "cardiology": lines("""
        unstable angina | stress test=ETT
        *acute* coronary syndrome=ACS | serial troponins=trops
        _deep vein_ thrombosis=DVT | venous duplex
        _heart_ failure exacerbation | echocardiogram=echo
        endocarditis | transesophageal echocardiogram=TEE
        _atrial_ flutter | electrocardiogram=EKG
        _pericardial_ tamponade | urgent echocardiogram=stat echo
        _aortic_ dissection | CT angiogram of the aorta=CTA
    """),
    "pulmonology": lines("""
        _pulmonary_ embolism=PE | CT angiogram of the chest=CTA chest
        aspiration pneumonia | swallow study
        asthma exacerbation | peak flow
        _lung_ cancer | CT-guided biopsy
        tuberculosis=TB | sputum culture
        sleep apnea=OSA | sleep study=PSG
        sarcoidosis | ACE level
    """),
    "endocrinology": lines("""
        _adrenal_ insufficiency | cosyntropin stimulation test
        Graves disease | thyroid uptake scan
        Cushing syndrome | dexamethasone suppression test=DST
        insulinoma | supervised fast
        hyperparathyroidism | parathyroid scan
        diabetic neuropathy | monofilament test
        gestational diabetes | oral glucose tolerance test=OGTT
    """),
    "oncology": lines("""
        *recurrent* lymphoma | PET scan=PET
        _bone_ metastases=bone mets | bone scan
        tumor lysis syndrome=TLS | uric acid
        neutropenic fever | blood cultures=BCx
        _spinal cord_ compression | MRI of the spine
        _pulmonary_ embolism=PE | chest CT
        myelodysplastic syndrome=MDS | bone marrow biopsy=BMBx
        local recurrence | core needle biopsy=CNB
    """),
    "gastroenterology": lines("""
        *acute* appendicitis | CT of the abdomen=CT abd
        _gallbladder_ disease | HIDA scan
        celiac disease | tissue transglutaminase antibody=tTG
        *chronic* pancreatitis | fecal elastase
        C. difficile infection=C. diff | stool toxin assay
        _gastric_ ulcer | upper endoscopy=EGD
        Helicobacter infection=H. pylori | urea breath test
        choledocholithiasis | MRCP
    """),
    "nephrology": lines("""
        obstructive uropathy | renal ultrasound=renal US
        interstitial nephritis | urine eosinophils
        nephrotic syndrome | 24-hour urine collection=24h urine
        _renal artery_ stenosis=RAS | renal duplex
        transplant rejection | kidney biopsy
        rhabdomyolysis | creatine kinase=CK
        amyloidosis | serum electrophoresis=SPEP
    """),
    "orthopaedics": lines("""
        _scaphoid_ fracture | repeat x-rays
        _meniscal_ tear | MRI of the knee
        septic _joint_ | joint aspiration
        stress fracture of the _tibia_ | bone scan
        _rotator cuff_ tear=RC tear | shoulder ultrasound
        cauda equina syndrome=CES | urgent MRI
        _ulnar_ neuropathy | nerve conduction study=NCS
        prosthetic loosening | CT of the hip
    """),
    "psychiatry": lines("""
        serotonin syndrome | CK level
        substance-induced psychosis | urine drug screen=UDS
        lithium toxicity | lithium level=Li level
        bipolar depression | mood chart
        alcohol withdrawal=EtOH w/d | CIWA score
        early dementia | cognitive testing
        personality disorder | psychological testing
    """),
    "neurology": lines("""
        multiple sclerosis=MS | lumbar puncture=LP
        _temporal_ arteritis | temporal artery biopsy
        *acute* stroke=CVA | MRI of the brain=MRI brain
        partial seizures | EEG
        myasthenia gravis=MG | acetylcholine receptor antibodies
        normal pressure hydrocephalus=NPH | large-volume tap test
        subarachnoid hemorrhage=SAH | head CT=CTH
        Guillain-Barré syndrome=GBS | nerve conduction study=NCS
    """),
    "infection": lines("""
        bacterial meningitis | lumbar puncture=LP
        endocarditis | transesophageal echocardiogram=TEE
        osteomyelitis | bone biopsy
        streptococcal pharyngitis=strep | rapid strep test=RST
        influenza=flu | respiratory viral panel=RVP
        *acute* HIV infection | viral load=VL
        malaria | thick smear
        infectious mononucleosis=mono | monospot
    """),
}
