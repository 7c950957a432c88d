# SPDX-License-Identifier: Apache-2.0
"""Problems by specialty: diseases, symptoms and signs, with _body location_, ^severity^ and *course* marked.

"a(n)" stands for the article. Spellings after "=" are abbreviations or shorter names. A disease that ends in "+" takes a degree ("severe").
"""

from __future__ import annotations

from collections.abc import Mapping


def _rows(text: str) -> tuple[str, ...]:
    return tuple(" ".join(item.split()) for item in text.split(",") if item.strip())


DISEASES: Mapping[str, tuple[str, ...]] = {
    "general": _rows("""
        hypertension=HTN, hyperlipidemia=HLD=dyslipidemia, obesity+, iron deficiency anemia+=IDA,
        _thyroid_ nodule, osteoarthritis+=OA, gout, seasonal allergies, glaucoma, cataracts,
        insomnia+, benign _prostatic_ hyperplasia=BPH, vitamin D deficiency,
        obstructive sleep apnea+=OSA, gastroesophageal reflux disease=GERD=reflux,
        *chronic* _back_ pain, eczema+, shingles
    """),
    "cardiology": _rows("""
        _coronary artery_ disease=CAD, congestive _heart_ failure=CHF,
        _atrial_ fibrillation=AF=afib, _aortic_ stenosis+=AS, _mitral_ regurgitation+=MR,
        ischemic cardiomyopathy=ICM, *old* myocardial infarction=old MI,
        peripheral arterial disease=PAD, _abdominal aortic_ aneurysm=AAA,
        *acute* coronary syndrome=ACS, unstable angina=UA, _carotid artery_ stenosis,
        _deep vein_ thrombosis=DVT, endocarditis, sick sinus syndrome, pericarditis,
        complete _heart_ block=CHB, ^NYHA class III^ heart failure
    """),
    "pulmonology": _rows("""
        *chronic* obstructive _pulmonary_ disease=COPD, asthma+, community acquired pneumonia=CAP,
        _pulmonary_ embolism=PE, interstitial _lung_ disease=ILD, sarcoidosis, bronchiectasis,
        _pulmonary_ hypertension+, *acute* bronchitis, respiratory failure, emphysema+,
        *recurrent* sinusitis, _pulmonary_ fibrosis, croup
    """),
    "endocrinology": _rows("""
        type 2 diabetes mellitus=T2DM=DM2, type 1 diabetes mellitus=T1DM, hypothyroidism,
        Graves disease, diabetic neuropathy+, diabetic ketoacidosis=DKA, Addison disease,
        primary hyperparathyroidism, osteoporosis, Hashimoto thyroiditis, Cushing syndrome,
        _pituitary_ adenoma, diabetic retinopathy+, polycystic _ovary_ syndrome=PCOS,
        metabolic syndrome
    """),
    "oncology": _rows("""
        _breast_ cancer=breast CA, _colon_ cancer=colon CA, non-small cell _lung_ cancer=NSCLC,
        _prostate_ cancer, *metastatic* melanoma, diffuse large B-cell lymphoma=DLBCL,
        multiple myeloma=MM, *acute* myeloid leukemia=AML, *chronic* lymphocytic leukemia=CLL,
        _renal_ cell carcinoma=RCC, _pancreatic_ adenocarcinoma, _ovarian_ carcinoma,
        _liver_ metastases=liver mets, _bone_ metastases=bone mets, febrile neutropenia,
        _bladder_ tumor, ^stage IV^ _gastric_ cancer, squamous cell carcinoma of the _tongue_,
        Hodgkin disease
    """),
    "gastroenterology": _rows("""
        Crohn disease, ulcerative colitis+=UC, cirrhosis of the _liver_, *chronic* hepatitis C=HCV,
        diverticulitis, cholelithiasis, *acute* pancreatitis, peptic ulcer disease=PUD,
        irritable _bowel_ syndrome=IBS, celiac disease, _esophageal_ varices, Barrett esophagus,
        small _bowel_ obstruction=SBO, _upper gastrointestinal_ bleed=UGIB, hemorrhoids
    """),
    "nephrology": _rows("""
        *chronic* kidney disease=CKD, *end-stage* _renal_ disease=ESRD, *acute* _kidney_ injury=AKI,
        nephrotic syndrome, IgA nephropathy, lupus nephritis, polycystic _kidney_ disease=PKD,
        _renal artery_ stenosis, nephrolithiasis, secondary hyperparathyroidism,
        ^stage 4^ chronic kidney disease, hyperkalemia+, hyponatremia+, obstructive uropathy
    """),
    "orthopaedics": _rows("""
        _rotator cuff_ tear, _lumbar_ spinal stenosis+, _carpal tunnel_ syndrome=CTS,
        _meniscal_ tear, degenerative _disk_ disease=DDD, _femoral neck_ fracture=FNF,
        _distal radius_ fracture=DRF, plantar fasciitis, _hip_ osteoarthritis+=hip OA, scoliosis+,
        _anterior cruciate ligament_ tear=ACL tear, adhesive capsulitis, _lateral_ epicondylitis,
        herniated _L4-5_ disk, avascular necrosis of the _femoral head_=AVN,
        _Achilles tendon_ rupture, trochanteric bursitis
    """),
    "psychiatry": _rows("""
        major depressive disorder+=MDD, generalized anxiety disorder+=GAD, bipolar disorder=BPAD,
        schizophrenia, posttraumatic stress disorder=PTSD, alcohol use disorder+=AUD,
        attention deficit disorder=ADHD, panic disorder, borderline personality disorder=BPD,
        obsessive-compulsive disorder=OCD, opioid dependence=OUD, depression+, *recurrent* mania,
        anorexia nervosa, schizoaffective disorder, adjustment disorder
    """),
    "neurology": _rows("""
        migraine, epilepsy, multiple sclerosis=MS, Parkinson disease=PD, ischemic stroke=CVA,
        transient ischemic attack=TIA, Alzheimer dementia+, peripheral neuropathy+=PN,
        trigeminal neuralgia, myasthenia gravis, subdural hematoma=SDH,
        restless _legs_ syndrome=RLS, essential tremor+, Bell palsy,
        _left middle cerebral artery_ infarct, normal pressure hydrocephalus=NPH
    """),
    "infection": _rows("""
        _urinary tract_ infection=UTI, cellulitis of the _left leg_, sepsis+,
        osteomyelitis of the _right foot_, HIV infection=HIV, pyelonephritis=pyelo, MRSA bacteremia,
        Lyme disease, *latent* tuberculosis=LTBI, C. difficile colitis=C. diff,
        infectious mononucleosis, bacterial meningitis, influenza=flu, _dental_ abscess,
        herpes zoster, malaria
    """),
}

SYMPTOMS: Mapping[str, tuple[str, ...]] = {
    "general": _rows("""
        fever, chills, nausea, vomiting=emesis, fatigue, malaise, weight loss, night sweats,
        dizziness, headache=HA, diarrhea, loss of appetite, weakness, _abdominal_ pain=abd pain,
        shortness of breath=SOB=dyspnea, _chest_ pain=CP, a cold, rash, itching
    """),
    "cardiology": _rows("""
        palpitations=palps, syncope, orthopnea, _leg_ swelling=LE edema,
        paroxysmal nocturnal dyspnea=PND, lightheadedness, exertional dyspnea=DOE, _chest_ pressure,
        _calf_ claudication, _ankle_ swelling, near-syncope
    """),
    "pulmonology": _rows("""
        cough, wheezing, productive cough, hemoptysis, _pleuritic chest_ pain, sputum production,
        hoarseness, _nasal_ congestion, snoring, dyspnea at rest, _throat_ tightness,
        daytime sleepiness
    """),
    "endocrinology": _rows("""
        polyuria, polydipsia, heat intolerance, cold intolerance, hypoglycemia, _hand_ tremor,
        hair loss, hot flashes, numbness of the _feet_, blurred vision, weight gain,
        irregular menses
    """),
    "oncology": _rows("""
        mouth sores, _bone_ pain, easy bruising, early satiety, _neck_ swelling, painless jaundice,
        difficulty swallowing, tingling in the _fingertips_, hot flushes, _breast_ tenderness,
        blood in the stool, poor appetite
    """),
    "gastroenterology": _rows("""
        heartburn, constipation, bloating, hematemesis, melena, bright red blood per _rectum_=BRBPR,
        _epigastric_ pain, dysphagia, _rectal_ pain, _right upper quadrant_ pain=RUQ pain,
        tarry stools, belching
    """),
    "nephrology": _rows("""
        hematuria, dysuria, nocturia, decreased urine output, _flank_ pain, foamy urine, pruritus,
        _facial_ swelling, muscle cramps, urinary frequency, metallic taste
    """),
    "orthopaedics": _rows("""
        _groin_ pain, morning stiffness, locking of the _knee_, _shoulder_ weakness,
        _low back_ pain=LBP, swelling of the _ankle_, instability of the _knee_, _hip_ pain, a limp,
        _heel_ pain, grip weakness, giving way
    """),
    "psychiatry": _rows("""
        anxiety, suicidal ideation=SI, auditory hallucinations=AH, low mood, poor sleep,
        irritability, racing thoughts, panic attacks, anhedonia, paranoia, homicidal ideation=HI,
        stress, crying spells, poor concentration
    """),
    "neurology": _rows("""
        numbness of the _left arm_, seizures=sz, double vision, _facial_ droop, unsteady gait,
        memory loss, slurred speech, tremor, vertigo, tingling of the _hands_, photophobia,
        word-finding difficulty, confusion=AMS
    """),
    "infection": _rows("""
        sore _throat_, rigors, myalgias, purulent drainage, _neck_ stiffness, swollen _lymph nodes_,
        sinus pressure, _ear_ pain, vaginal discharge, burning on urination, joint aches,
        wound drainage
    """),
}

SIGNS: Mapping[str, tuple[str, ...]] = {
    "general": _rows("""
        pallor, jaundice, _lower extremity_ edema=LE edema, _abdominal_ tenderness, tachycardia=tachy, scleral icterus,
        lymphadenopathy=LAD, clubbing, cyanosis, dehydration, acute distress
    """),
    "cardiology": _rows("""
        a(n) systolic murmur, jugular venous distention=JVD, _pedal_ edema, a(n) S3 gallop, a(n) _carotid_ bruit, bradycardia, diaphoresis,
        pitting edema of the _ankles_, cool _extremities_, a(n) irregular pulse, a(n) pericardial rub, weak _pedal_ pulses
    """),
    "pulmonology": _rows("""
        _bibasilar_ crackles, expiratory wheezes, accessory muscle use, rhonchi, hypoxia, dullness at the _right base_, pursed-lip breathing,
        prolonged expiration, _intercostal_ retractions, stridor, a(n) barrel _chest_, coarse _breath_ sounds
    """),
    "endocrinology": _rows("""
        a(n) goiter, a(n) _foot_ ulcer, acanthosis nigricans, _abdominal_ striae, exophthalmos, absent _ankle_ reflexes, dry skin,
        a(n) fine tremor, lid lag, truncal obesity, callus of the _great toe_, reduced _foot_ sensation
    """),
    "oncology": _rows("""
        a(n) palpable _breast_ mass, _axillary_ adenopathy, hepatosplenomegaly=HSM, mucositis, cachexia, a(n) _supraclavicular_ node, alopecia,
        _port site_ redness, _hand_ peeling, temporal wasting, _neck_ fullness, a(n) firm _prostate_ nodule
    """),
    "gastroenterology": _rows("""
        rebound tenderness, guarding, ascites, hepatomegaly, _abdominal_ distention, asterixis, spider angiomata, shifting dullness,
        a(n) _umbilical_ hernia, _perianal_ fistula, a(n) positive Murphy sign, _right lower quadrant_ tenderness=RLQ tenderness
    """),
    "nephrology": _rows("""
        _costovertebral angle_ tenderness=CVAT, _periorbital_ edema, anasarca, volume overload, uremic frost, _flank_ tenderness,
        a(n) _suprapubic_ mass, a(n) distended _bladder_, _sacral_ edema, a(n) pericardial rub
    """),
    "orthopaedics": _rows("""
        a(n) _joint_ effusion, crepitus, _medial joint line_ tenderness, _quadriceps_ atrophy, a(n) antalgic gait, varus deformity,
        _paraspinal muscle_ spasm, limited abduction, ecchymosis, laxity of the _knee_, _trochanteric_ tenderness, _thenar_ wasting
    """),
    "psychiatry": _rows("""
        flat affect, pressured speech, psychomotor agitation, delusions, flight of ideas, poor insight, tearfulness, disorganized thinking,
        superficial _forearm_ lacerations, poor eye contact, restlessness, blunted affect
    """),
    "neurology": _rows("""
        nystagmus, ataxia, hyperreflexia, pronator drift, _left facial_ weakness, cogwheel rigidity, aphasia, papilledema, hemianopia,
        a(n) shuffling gait, _right arm_ drift, ptosis, clonus, _tongue_ deviation
    """),
    "infection": _rows("""
        erythema, warmth, _tonsillar_ exudates, fluctuance, petechiae, _cervical_ lymphadenopathy, _oral_ thrush, nuchal rigidity, induration,
        purulent drainage, crepitus, a(n) draining _sinus tract_, lymphangitic streaking, _tympanic membrane_ redness
    """),
}

PARTS: Mapping[str, tuple[str, ...]] = {
    "general": _rows("arm, leg, shoulder, knee, hand, foot, eye, ear"),
    "cardiology": _rows("arm, jaw, calf, leg, ankle, shoulder, chest, foot, thigh"),
    "pulmonology": _rows("chest, rib cage, flank, shoulder, calf, ear, lower chest"),
    "endocrinology": _rows("foot, great toe, heel, eye, hand, forefoot, wrist, neck"),
    "oncology": _rows("breast, axilla, flank, hip, rib cage, arm, neck, groin, chest wall"),
    "gastroenterology": _rows("lower quadrant, upper quadrant, flank, groin, lower abdomen, subcostal area"),
    "nephrology": _rows("flank, groin, lower abdomen, foot, leg, ankle, forearm"),
    "orthopaedics": _rows("""
        knee, hip, shoulder, elbow, wrist, ankle, thumb, heel, thigh, index finger, forearm, hamstring, buttock, big toe
    """),
    "psychiatry": _rows("wrist, forearm, hand, leg, temple, jaw"),
    "neurology": _rows("arm, leg, hand, face, temple, foot, eye, cheek, eyelid"),
    "infection": _rows("foot, leg, ear, tonsil, groin, forearm, elbow, lower leg, cheek, eye"),
}
SIDES = ("left", "right", "left", "right", "bilateral")
PAINS = _rows(
    "pain, swelling, numbness, stiffness, weakness, discomfort, tenderness, cramping, redness, bruising"
)
COMPLAINTS: Mapping[str, tuple[str, ...]] = {
    "eye": _rows("pain, redness, irritation, itching, swelling, discharge"),
    "eyelid": _rows("drooping, swelling, twitching, weakness"),
    "ear": _rows("pain, fullness, ringing, discharge, itching"),
    "face": _rows("numbness, weakness, tingling, pain, swelling"),
    "temple": _rows("pain, tenderness, throbbing, pressure"),
    "jaw": _rows("pain, tightness, discomfort, clenching"),
    "cheek": _rows("pain, numbness, swelling, tenderness"),
    "tonsil": _rows("pain, swelling, soreness"),
    **{
        part: _rows("pain, tightness, discomfort, soreness, tenderness")
        for part in ("chest", "rib cage", "lower chest", "chest wall", "flank", "groin", "axilla", "neck")
    },
    **{
        part: _rows("pain, tenderness, cramping, discomfort, fullness")
        for part in ("lower quadrant", "upper quadrant", "lower abdomen", "subcostal area")
    },
    "breast": _rows("pain, tenderness, swelling, redness, soreness"),
}
"""Complaints of the parts that do not have the usual PAINS."""

DEGREES = (
    "mild",
    "moderate",
    "severe",
    "mild",
    "severe",
    "slight",
    "significant",
    "marked",
    "mild to moderate",
)
TRENDS = _rows("worsening, intermittent, persistent, new, recurrent, acute, chronic, progressive, occasional")
RELATIVES = (
    "mother",
    "father",
    "sister",
    "brother",
    "paternal uncle",
    "maternal grandmother",
    "daughter",
    "son",
    "maternal aunt",
)
