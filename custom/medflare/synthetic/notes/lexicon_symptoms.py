# SPDX-License-Identifier: Apache-2.0
"""Symptoms and signs by specialty, and complaints composed of a side, a part of the body and a word for it.

Marked as in `lexicon_problems`.
"""

from __future__ import annotations

from collections.abc import Mapping

from .tables import rows

SYMPTOMS: Mapping[str, tuple[str, ...]] = {
    "general": rows("""
        fever, chills, nausea, vomiting=emesis, fatigue, malaise, weight loss, night sweats, dizziness,
        headache=HA, diarrhea, loss of appetite, weakness, _abdominal_ pain=abd pain,
        shortness of breath=SOB=dyspnea, _chest_ pain=CP, rash, itching
    """),
    "cardiology": rows("""
        palpitations=palps, syncope, orthopnea, _leg_ swelling=LE edema,
        paroxysmal nocturnal dyspnea=PND, lightheadedness, exertional dyspnea=DOE, _chest_ pressure,
        _calf_ claudication, _ankle_ swelling, near-syncope
    """),
    "pulmonology": rows("""
        cough, wheezing, productive cough, hemoptysis, _pleuritic chest_ pain, sputum production,
        hoarseness, _nasal_ congestion, snoring, dyspnea at rest, _throat_ tightness, daytime sleepiness
    """),
    "endocrinology": rows("""
        polyuria, polydipsia, heat intolerance, cold intolerance, hypoglycemia, _hand_ tremor,
        hair loss, hot flashes, numbness of the _feet_, blurred vision, weight gain, salt craving
    """),
    "oncology": rows("""
        mouth sores, _bone_ pain, easy bruising, early satiety, _neck_ swelling, painless jaundice,
        difficulty swallowing, tingling in the _fingertips_, hot flushes, _breast_ tenderness,
        blood in the stool, poor appetite
    """),
    "gastroenterology": rows("""
        heartburn, constipation, bloating, hematemesis, melena, bright red blood per _rectum_=BRBPR,
        _epigastric_ pain, dysphagia, _rectal_ pain, _right upper quadrant_ pain=RUQ pain, tarry stools,
        belching
    """),
    "nephrology": rows("""
        hematuria, dysuria, nocturia, decreased urine output, _flank_ pain, foamy urine, pruritus,
        _facial_ swelling, muscle cramps, urinary frequency, metallic taste
    """),
    "orthopaedics": rows("""
        _groin_ pain, morning stiffness, locking of the _knee_, _shoulder_ weakness,
        _low back_ pain=LBP, swelling of the _ankle_, instability of the _knee_, _hip_ pain, a limp,
        _heel_ pain, grip weakness, giving way
    """),
    "psychiatry": rows("""
        anxiety, suicidal ideation=SI, auditory hallucinations=AH, low mood, poor sleep, irritability,
        racing thoughts, panic attacks, anhedonia, paranoia, homicidal ideation=HI, stress,
        crying spells, poor concentration
    """),
    "neurology": rows("""
        numbness of the _left arm_, seizures=sz, double vision, _facial_ droop, unsteady gait,
        memory loss, slurred speech, tremor, vertigo, tingling of the _hands_, photophobia,
        word-finding difficulty, confusion=AMS
    """),
    "infection": rows("""
        sore _throat_, rigors, myalgias, purulent drainage, _neck_ stiffness, swollen _lymph nodes_,
        sinus pressure, _ear_ pain, vaginal discharge, burning on urination, joint aches, wound drainage
    """),
}

SIGNS: Mapping[str, tuple[str, ...]] = {
    "general": rows("""
        pallor, jaundice, _lower extremity_ edema=LE edema, _abdominal_ tenderness, tachycardia=tachy,
        scleral icterus, lymphadenopathy=LAD, clubbing, cyanosis, dehydration
    """),
    "cardiology": rows("""
        a(n) systolic murmur, jugular venous distention=JVD, _pedal_ edema, a(n) S3 gallop,
        a(n) _carotid_ bruit, bradycardia, diaphoresis, pitting edema of the _ankles_,
        cool _extremities_, a(n) irregular pulse, a(n) pericardial rub, weak _pedal_ pulses
    """),
    "pulmonology": rows("""
        _bibasilar_ crackles, expiratory wheezes, accessory muscle use, rhonchi, hypoxia,
        dullness at the _right base_, pursed-lip breathing, prolonged expiration,
        _intercostal_ retractions, stridor, a(n) barrel _chest_, coarse _breath_ sounds
    """),
    "endocrinology": rows("""
        a(n) goiter, a(n) _foot_ ulcer, acanthosis nigricans, _abdominal_ striae, exophthalmos,
        absent _ankle_ reflexes, dry skin, a(n) fine tremor, lid lag, truncal obesity,
        callus of the _great toe_, reduced _foot_ sensation
    """),
    "oncology": rows("""
        a(n) palpable _breast_ mass, _axillary_ adenopathy, hepatosplenomegaly=HSM, mucositis, cachexia,
        a(n) _supraclavicular_ node, alopecia, _port site_ redness, _hand_ peeling, temporal wasting,
        _neck_ fullness, a(n) firm _prostate_ nodule
    """),
    "gastroenterology": rows("""
        rebound tenderness, guarding, ascites, hepatomegaly, _abdominal_ distention, asterixis,
        spider angiomata, shifting dullness, a(n) _umbilical_ hernia, _perianal_ fistula,
        a(n) positive Murphy sign, _right lower quadrant_ tenderness=RLQ tenderness
    """),
    "nephrology": rows("""
        _costovertebral angle_ tenderness=CVAT, _periorbital_ edema, anasarca, volume overload,
        uremic frost, _flank_ tenderness, a(n) _suprapubic_ mass, a(n) distended _bladder_,
        _sacral_ edema, a(n) pericardial rub
    """),
    "orthopaedics": rows("""
        a(n) _joint_ effusion, crepitus, _medial joint line_ tenderness, _quadriceps_ atrophy,
        a(n) antalgic gait, varus deformity, _paraspinal muscle_ spasm, limited abduction, ecchymosis,
        laxity of the _knee_, _trochanteric_ tenderness, _thenar_ wasting
    """),
    "psychiatry": rows("""
        flat affect, pressured speech, psychomotor agitation, delusions, flight of ideas, poor insight,
        tearfulness, disorganized thinking, superficial _forearm_ lacerations, poor eye contact,
        restlessness, blunted affect
    """),
    "neurology": rows("""
        nystagmus, ataxia, hyperreflexia, pronator drift, _left facial_ weakness, cogwheel rigidity,
        aphasia, papilledema, hemianopia, a(n) shuffling gait, _right arm_ drift, ptosis, clonus,
        _tongue_ deviation
    """),
    "infection": rows("""
        erythema, warmth, _tonsillar_ exudates, fluctuance, petechiae, _cervical_ lymphadenopathy,
        _oral_ thrush, nuchal rigidity, induration, purulent drainage, crepitus,
        a(n) draining _sinus tract_, lymphangitic streaking, _tympanic membrane_ redness
    """),
}

PARTS: Mapping[str, tuple[str, ...]] = {
    "general": rows("arm, leg, shoulder, knee, hand, foot, eye, ear"),
    "cardiology": rows("arm, jaw, calf, leg, ankle, shoulder, chest, foot, thigh"),
    "pulmonology": rows("chest, rib cage, flank, shoulder, calf, ear, lower chest"),
    "endocrinology": rows("foot, great toe, heel, eye, hand, forefoot, wrist, neck"),
    "oncology": rows("breast, axilla, flank, hip, rib cage, arm, neck, groin, chest wall"),
    "gastroenterology": rows("lower quadrant, upper quadrant, flank, groin, lower abdomen, subcostal area"),
    "nephrology": rows("flank, groin, lower abdomen, foot, leg, ankle, forearm"),
    "orthopaedics": rows("""
        knee, hip, shoulder, elbow, wrist, ankle, thumb, heel, thigh, index finger, forearm, hamstring,
        buttock, big toe
    """),
    "psychiatry": rows("wrist, forearm, hand, leg, temple, jaw"),
    "neurology": rows("arm, leg, hand, face, temple, foot, eye, cheek, eyelid"),
    "infection": rows("foot, leg, ear, tonsil, groin, forearm, elbow, lower leg, cheek, eye"),
}
SIDES = ("left", "right", "left", "right", "bilateral")
PAINS = rows(
    "pain, swelling, numbness, stiffness, weakness, discomfort, tenderness, cramping, redness, bruising"
)
COMPLAINTS: Mapping[str, tuple[str, ...]] = {
    "eye": rows("pain, redness, irritation, itching, swelling, discharge"),
    "eyelid": rows("drooping, swelling, twitching, weakness"),
    "ear": rows("pain, fullness, ringing, discharge, itching"),
    "face": rows("numbness, weakness, tingling, pain, swelling"),
    "temple": rows("pain, tenderness, throbbing, pressure"),
    "jaw": rows("pain, tightness, discomfort, clenching"),
    "cheek": rows("pain, numbness, swelling, tenderness"),
    "tonsil": rows("pain, swelling, soreness"),
    **{
        part: rows("pain, tightness, discomfort, soreness, tenderness")
        for part in ("chest", "rib cage", "lower chest", "chest wall", "flank", "groin", "axilla", "neck")
    },
    **{
        part: rows("pain, tenderness, cramping, discomfort, fullness")
        for part in ("lower quadrant", "upper quadrant", "lower abdomen", "subcostal area")
    },
    "breast": rows("pain, tenderness, swelling, redness, soreness"),
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
TRENDS = rows("""
    worsening, intermittent, persistent, new, recurrent, acute, chronic, progressive, occasional
""")
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
