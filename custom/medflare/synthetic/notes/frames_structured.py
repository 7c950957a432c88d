# SPDX-License-Identifier: Apache-2.0
"""The structured house: SECTION: headers, numbered lists and short sentences."""

from __future__ import annotations

from .house import House, Section, frames, spelled

_RULES = frames("""
date:
- {month_number}/{day}/{this_year}
- {month_number}-{day}-{this_year_short}
when:
- [temporal >@|<last week~last month~two weeks ago~yesterday>]
- in [temporal >@|{month}]
- on [temporal >@|{date}]
- [temporal >@|{number} months ago]
past:
- in [temporal >@|{year}]
- [temporal >@|{number} years ago]
lasting:
- x [temporal >@|{digit} days]
- for [temporal >@|{number} weeks]
- since [temporal >@|{date}]
lab_form:
- [test @|NAME] [labvalue >@|VALUE]
- [test @|NAME]: [labvalue >@|VALUE] (ref [reference_range >@|RANGE])
- [test @|NAME] [labvalue >@|VALUE] ([reference_range >@|RANGE])
degrees:
- F
- °F
vital_form:
- [test @|NAME]: [labvalue >@|VALUE]
- [test @|NAME] [labvalue >@|VALUE]
vital_bp:
- Blood pressure
- BP
vital_pulse:
- Pulse
- Heart rate
vital_temp:
- Temperature
vital_breaths:
- Respirations
vital_oxygen:
- O2 saturation
- SpO2
vital_weight:
- Weight
rx_form:
- NAME STRENGTH FORM ROUTE OFTEN
- NAME STRENGTH ROUTE OFTEN
- NAME STRENGTH FORM, take ROUTE OFTEN
complaint:
- {symptom:@a} {lasting:@a}.
- {symptom:@a} and {symptom:@b} {lasting:@a,@b}.
- Follow-up of {disease:@a}.
opening:
- The patient is a {age}-year-old {female} with {disease:@a} seen for {symptom:@b} {lasting:@b}.
- {age}-year-old {female} with {disease:@a}, status post {operation:@b} {past:@b}, presents with
  {symptom:@c}.
- Patient reports {symptom:@a} and {symptom:@b} {lasting:@a,@b}.
present:
- {symptom:@a} [course >@a|<improving~worsening~unchanged~better>] since [temporal >@a|the last visit].
- [negation >@a,@b|Negative for] {plain_symptom:@a} and {plain_symptom:@b}.
- The patient tolerated {operation:@a} well and has had [negation >@b|no] {plain_symptom:@b}.
- Since starting {drug:@a} the patient has noticed {symptom:@b}.
- Patient caught [problem @a|a cold] [temporal >@a|last week]; {symptom:@b} persists.
systems:
- GENERAL: [negation >@a,@b|No] {plain_symptom:@a} or {plain_symptom:@b}. Positive for {symptom:@c}.
- [negation >@a,@b,@c|Negative for] {plain_symptom:@a}, {plain_symptom:@b}, and {plain_symptom:@c}.
- Positive for {symptom:@a} and {symptom:@b}. [negation >@c|No] {plain_symptom:@c}.
- Patient [negation >@a,@b|denies] {plain_symptom:@a} or {plain_symptom:@b}.
history:
- {disease:@a}.
- {disease:@a}, diagnosed [temporal >@a|{year}].
- {disease:@a}.
surgery:
- {operation:@a}, [temporal >@a|{year}].
- {operation:@a} and {operation:@b}, [temporal >@a,@b|{year}].
- [negation >@a|No] prior {operation:@a}.
family:
- [subject >@a|<Mother~Father~Sister~Brother~Grandmother>]: {inherited:@a}.
- Positive for {inherited:@a} in [subject >@a|<the father~a sister~the mother~two brothers>].
- [negation >@a,@b|No] [subject >@a,@b|family] history of {inherited:@a} or {inherited:@b}.
medicine:
* {prescription:@a}.
- {short_course:@a} [duration >@a|x {digit} days].
- {prescription:@a}, started [temporal >@a|{date}].
- {prescription:@a} for {indication:@b}.
- [drug @a|Calcium] [strength >@a|500 mg] [form >@a|tablet] [frequency >@a|b.i.d.].
- {drug:@a}, [negation >@a|discontinued] {when:@a}.
vitals_line:
- {vitals:@}.
exam:
- ABDOMEN: [labvalue >@a|<Soft~Flat~Nontender>] on [test @a|palpation]. [negation >@b,@c|No] {plain_sign:@b}
  or {plain_sign:@c}.
- LUNGS: [labvalue >@a|Clear] to [test @a|auscultation]. [negation >@b|No] {plain_sign:@b}.
- GENERAL: [negation >@a,@b|No] {plain_sign:@a} or {plain_sign:@b}.
- SKIN: {sign:@a}. [negation >@b|No] {plain_sign:@b}.
- GENERAL: In no [problem @c|acute distress]. {sign:@a} and {sign:@b} noted.
labs:
- Drawn on [temporal >@a,@b,@c|{date}]. {lab:@a}, {lab:@b}, {lab:@c}.
* {lab:@a}, {lab:@b}, {lab:@c}.
* {lab:@a}; {lab:@b}; {lab:@c}; {lab:@d}.
- {lab:@a}, {lab:@b}. [test @c|Calcium] [labvalue >@c|<8.4~9.8~11.2~7.9> mg/dL].
- {lab:@a}. {study:@b} [labvalue >@b|<negative~positive~normal>].
imaging:
- Date of study [temporal >@a,@b|{date}]. {image:@a}: {seen:@d}. {study:@b}: [labvalue
  >@b|<Negative~Normal>].
- {image:@a} ([temporal >@a|{date}]): {seen:@b}. [negation >@c|No] {unseen:@c}.
- {image:@a}: [labvalue >@a|<Normal~Unremarkable~Negative>]. {image:@b}: {seen:@c}.
- {image:@a} was done {when:@a}. It revealed {seen:@b}.
- [temporal >@a|{date}] {image:@a} showed {seen:@b} and {seen:@c}.
- [test @a|Biopsy] {when:@a} was [labvalue >@a|<benign~negative~inconclusive>].
- [test @a|CT]: [problem @b,@c|nodules in the] [problem @b|right] and [problem @c|left <lungs~kidneys~thyroid
  lobes>].
assessment:
- {disease:@a}, [course >@a|<stable~progressing~in remission~improving>].
- {treated:@a}. Continue {ordered:@b}.
- [uncertain >@a|<Possible~Probable~Suspected~Questionable>] {suspect:@a}. Check {workup:@b}.
- {disease:@a}, continue {therapy:@b}. Repeat {lab_name:@c} in [temporal >@c|{number} weeks].
- {symptom:@a}, [uncertain >@b|likely] {suspect:@b}. Obtain {workup:@c}.
- [uncertain >@a|Rule out] {suspect:@a} with {workup:@b} on [temporal >@b|{weekday}].
plan:
- Start {short_course:@a} [duration >@a|for {digit} days].
- Schedule {operation:@a} [temporal >@a|<next week~this month~within {digit} weeks>].
- Return to the clinic [condition >@a,@b|if] {plain_symptom:@a} or {plain_symptom:@b} <occurs~develops>.
- Hold {drug:@a} until [temporal >@a|{date}]. {operation:@b} is [negation >@b|not indicated].
- Call [condition >@a|in the event of] {plain_symptom:@a}.
- [negation >@a|No] further {study:@a} [temporal >@a|at this time].
- Monitor for {plain_symptom:@a} during {therapy:@b}.
- Activity as tolerated and regular diet. Follow up with the primary physician.
""")

STRUCTURED = House(
    name="structured",
    sections=(
        Section(heading="CHIEF COMPLAINT:", rules=("complaint",), most=1, share=0.7),
        Section(heading="HISTORY OF PRESENT ILLNESS:", rules=("opening", "present"), most=2),
        Section(heading="PAST MEDICAL HISTORY:", rules=("history",), least=1, most=3, share=0.6, listed=True),
        Section(heading="PAST SURGICAL HISTORY:", rules=("surgery",), most=1, share=0.35),
        Section(heading="FAMILY HISTORY:", rules=("family",), most=1, share=0.4),
        Section(heading="REVIEW OF SYSTEMS:", rules=("systems",), most=1, share=0.5),
        Section(heading="MEDICATIONS:", rules=("medicine",), least=2, most=3, share=0.75, listed=True),
        Section(heading="VITAL SIGNS:", rules=("vitals_line",), most=1, share=0.45),
        Section(heading="PHYSICAL EXAMINATION:", rules=("exam",), most=1, share=0.5),
        Section(heading="LABORATORY DATA:", rules=("labs",), most=1, share=0.55),
        Section(heading="IMAGING:", rules=("imaging",), most=1, share=0.5),
        Section(heading="ASSESSMENT:", rules=("assessment",), least=1, most=2, listed=True),
        Section(heading="PLAN:", rules=("plan",), most=2, share=0.75),
    ),
    rules=_RULES,
    frequency=spelled(
        "daily/q.d.",
        "b.i.d.",
        "t.i.d.",
        "q.i.d.",
        "5 times daily",
        "q.h.s./at bedtime",
        "q.a.m.",
        "p.r.n.",
        "q.4h.",
        "q.6h./every 6 hours",
        "q.8h.",
        "q.12h.",
        "q.72h.",
        "q. week/weekly",
        "q. month/monthly",
        "every 3 weeks",
        "every 8 weeks",
        "x1",
    ),
    form={
        "tablet": ("tablet", "tab"),
        "capsule": ("capsule", "cap"),
        "dose tablet": ("1 tablet", "2 tablets", "1 tab"),
        "dose capsule": ("1 capsule", "2 capsules"),
        "dose inhaler": ("2 puffs", "1 puff"),
        "dose spray": ("1 spray", "2 sprays"),
    },
    route={
        "oral": ("p.o.", "p.o.", "by mouth"),
        "intravenous": ("IV",),
        "subcutaneous": ("subcu", "subcutaneously"),
        "intramuscular": ("IM",),
        "inhaled": ("inhaled", "via inhaler"),
        "topical": ("topically",),
        "sublingual": ("sublingual",),
        "intraarticular": ("intra-articular",),
    },
)
