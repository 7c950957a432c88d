# SPDX-License-Identifier: Apache-2.0
"""Problems by specialty: diseases, symptoms and signs, with _body location_, ^severity^ and *course* marked.

"a(n)" stands for the article. Spellings after "=" are abbreviations or shorter names. A disease that ends in
"+" takes a degree ("severe").
"""

from __future__ import annotations

from collections.abc import Mapping

from .tables import rows

DISEASES: Mapping[str, tuple[str, ...]] = {
    "general": rows("""
        hypertension=HTN, hyperlipidemia=HLD=dyslipidemia, obesity+, iron deficiency anemia+=IDA,
        _thyroid_ nodule, osteoarthritis+=OA, gout, seasonal allergies, glaucoma, cataracts, insomnia+,
        benign _prostatic_ hyperplasia=BPH, vitamin D deficiency, obstructive sleep apnea+=OSA,
        gastroesophageal reflux disease=GERD=reflux, *chronic* _back_ pain, eczema+, shingles
    """),
    "cardiology": rows("""
        _coronary artery_ disease=CAD, congestive _heart_ failure=CHF, _atrial_ fibrillation=AF=afib,
        _aortic_ stenosis+=AS, _mitral_ regurgitation+=MR, ischemic cardiomyopathy=ICM,
        *old* myocardial infarction=old MI, peripheral arterial disease=PAD,
        _abdominal aortic_ aneurysm=AAA, *acute* coronary syndrome=ACS, unstable angina=UA,
        _carotid artery_ stenosis, _deep vein_ thrombosis=DVT, endocarditis, sick sinus syndrome,
        pericarditis, complete _heart_ block=CHB, ^NYHA class III^ heart failure
    """),
    "pulmonology": rows("""
        *chronic* obstructive _pulmonary_ disease=COPD, asthma+, community acquired pneumonia=CAP,
        _pulmonary_ embolism=PE, interstitial _lung_ disease=ILD, sarcoidosis, bronchiectasis,
        _pulmonary_ hypertension+, *acute* bronchitis, respiratory failure, emphysema+,
        *recurrent* sinusitis, _pulmonary_ fibrosis
    """),
    "endocrinology": rows("""
        type 2 diabetes mellitus=T2DM=DM2, type 1 diabetes mellitus=T1DM, hypothyroidism,
        Graves disease, diabetic neuropathy+, diabetic ketoacidosis=DKA, Addison disease,
        primary hyperparathyroidism, osteoporosis, Hashimoto thyroiditis, Cushing syndrome,
        _pituitary_ adenoma, diabetic retinopathy+, polycystic _ovary_ syndrome=PCOS, metabolic syndrome
    """),
    "oncology": rows("""
        _breast_ cancer=breast CA, _colon_ cancer=colon CA, non-small cell _lung_ cancer=NSCLC,
        _prostate_ cancer, *metastatic* melanoma, diffuse large B-cell lymphoma=DLBCL,
        multiple myeloma=MM, *acute* myeloid leukemia=AML, *chronic* lymphocytic leukemia=CLL,
        _renal_ cell carcinoma=RCC, _pancreatic_ adenocarcinoma, _ovarian_ carcinoma,
        _liver_ metastases=liver mets, _bone_ metastases=bone mets, febrile neutropenia,
        _bladder_ tumor, ^stage IV^ _gastric_ cancer, squamous cell carcinoma of the _tongue_,
        Hodgkin disease
    """),
    "gastroenterology": rows("""
        Crohn disease, ulcerative colitis+=UC, cirrhosis of the _liver_, *chronic* hepatitis C=HCV,
        diverticulitis, cholelithiasis, *acute* pancreatitis, peptic ulcer disease=PUD,
        irritable _bowel_ syndrome=IBS, celiac disease, _esophageal_ varices, Barrett esophagus,
        small _bowel_ obstruction=SBO, _upper gastrointestinal_ bleed=UGIB, hemorrhoids
    """),
    "nephrology": rows("""
        *chronic* kidney disease=CKD, *end-stage* _renal_ disease=ESRD, *acute* _kidney_ injury=AKI,
        nephrotic syndrome, IgA nephropathy, lupus nephritis, polycystic _kidney_ disease=PKD,
        _renal artery_ stenosis, nephrolithiasis, secondary hyperparathyroidism,
        ^stage 4^ chronic kidney disease, hyperkalemia+, hyponatremia+, obstructive uropathy
    """),
    "orthopaedics": rows("""
        _rotator cuff_ tear, _lumbar_ spinal stenosis+, _carpal tunnel_ syndrome=CTS, _meniscal_ tear,
        degenerative _disk_ disease=DDD, _femoral neck_ fracture=FNF, _distal radius_ fracture=DRF,
        plantar fasciitis, _hip_ osteoarthritis+=hip OA, scoliosis+,
        _anterior cruciate ligament_ tear=ACL tear, adhesive capsulitis, _lateral_ epicondylitis,
        herniated _L4-5_ disk, avascular necrosis of the _femoral head_=AVN, _Achilles tendon_ rupture,
        trochanteric bursitis
    """),
    "psychiatry": rows("""
        major depressive disorder+=MDD, generalized anxiety disorder+=GAD, bipolar disorder=BPAD,
        schizophrenia, posttraumatic stress disorder=PTSD, alcohol use disorder+=AUD,
        attention deficit disorder=ADHD, panic disorder, borderline personality disorder=BPD,
        obsessive-compulsive disorder=OCD, opioid dependence=OUD, depression+, *recurrent* mania,
        anorexia nervosa, schizoaffective disorder, adjustment disorder
    """),
    "neurology": rows("""
        migraine, epilepsy, multiple sclerosis=MS, Parkinson disease=PD, ischemic stroke=CVA,
        transient ischemic attack=TIA, Alzheimer dementia+, peripheral neuropathy+=PN,
        trigeminal neuralgia, myasthenia gravis, subdural hematoma=SDH, restless _legs_ syndrome=RLS,
        essential tremor+, Bell palsy, _left middle cerebral artery_ infarct,
        normal pressure hydrocephalus=NPH
    """),
    "infection": rows("""
        _urinary tract_ infection=UTI, cellulitis of the _left leg_, sepsis+,
        osteomyelitis of the _right foot_, HIV infection=HIV, pyelonephritis=pyelo, MRSA bacteremia,
        Lyme disease, *latent* tuberculosis=LTBI, C. difficile colitis=C. diff,
        infectious mononucleosis, bacterial meningitis, influenza=flu, _dental_ abscess, herpes zoster,
        malaria
    """),
}

INHERITED: Mapping[str, tuple[str, ...]] = {
    "general": rows("""
        hypertension=HTN, obesity, gout, glaucoma, a stroke, heart disease, high cholesterol,
        kidney stones
    """),
    "cardiology": rows("""
        _coronary artery_ disease=CAD, sudden cardiac death, an _aortic_ aneurysm, a heart attack=MI
    """),
    "pulmonology": rows("""
        asthma, emphysema, _lung_ cancer, cystic fibrosis, alpha-1 antitrypsin deficiency, allergies
    """),
    "endocrinology": rows("""
        type 2 diabetes=DM2, hypothyroidism, osteoporosis, Graves disease, _thyroid_ cancer, diabetes=DM
    """),
    "oncology": rows("""
        _breast_ cancer, _colon_ cancer, leukemia, _pancreatic_ cancer, melanoma, lymphoma,
        _ovarian_ cancer
    """),
    "gastroenterology": rows("""
        Crohn disease, celiac disease, _colon_ polyps, hemochromatosis, _gallbladder_ disease
    """),
    "nephrology": rows("""
        polycystic _kidney_ disease=PKD, Alport syndrome, *end-stage* _renal_ disease=ESRD,
        kidney stones
    """),
    "orthopaedics": rows("""
        rheumatoid arthritis=RA, scoliosis, osteoarthritis=OA, osteoporosis, psoriasis, a _hip_ fracture
    """),
    "psychiatry": rows("""
        depression, alcoholism=EtOH abuse, bipolar disorder=BPAD, schizophrenia, suicide, anxiety,
        drug abuse
    """),
    "neurology": rows("""
        epilepsy, migraine, Parkinson disease=PD, Alzheimer disease=AD, multiple sclerosis=MS, dementia
    """),
    "infection": rows("tuberculosis=TB, hepatitis B=HBV, immune deficiency, rheumatic fever"),
}
