# SPDX-License-Identifier: Apache-2.0
"""The telegraphic house: abbreviations, no articles, few verbs ("c/o SOB x3d, denies CP")."""

from __future__ import annotations

from .house import House, Section, frames, spelled

_RULES = frames("""
date:
- {month_number}/{day}
- {month_number}/{day}/{this_year_short}
when:
- [temporal >@|<last wk~yest~{digit} wks ago>]
- [temporal >@|{date}]
- [temporal >@|{digit} mo ago]
- [temporal >@|last {short_day}]
short_day:
- Mon
- Tues
- Wed
- Thurs
- Fri
past:
- [temporal >@|'{year_short}]
- [temporal >@|{digit} yrs ago]
- [temporal >@|{year}]
onset:
- [temporal >@|last {short_day}]
- [temporal >@|{digit}d ago]
- [temporal >@|{digit} wks ago]
- [temporal >@|{date}]
lasting:
- x[temporal >@|{digit}d]
- x[temporal >@|{digit} wks]
- x [temporal >@|{digit}h]
- since [temporal >@|{short_day}]
- since [temporal >@|this am]
lab_form:
- [test @|NAME] [labvalue >@|VALUE]
- [test @|NAME] [labvalue >@|VALUE]
- [test @|NAME] [labvalue >@|VALUE] (nl [reference_range >@|RANGE])
degrees:
- F
- C
-
vital_form:
- [test @|NAME] [labvalue >@|VALUE]
vital_bp:
- BP
vital_pulse:
- HR
- P
vital_temp:
- T
- Temp
vital_breaths:
- RR
vital_oxygen:
- sat
- O2 sat
- SpO2
vital_weight:
- wt
rx_form:
- NAME STRENGTH FORM ROUTE OFTEN
- NAME STRENGTH OFTEN
- NAME STRENGTH ROUTE OFTEN
- FORM NAME STRENGTH OFTEN
denial:
- [negation >@a,@b|denies] {plain_symptom:@a}, {plain_symptom:@b}
- [negation >@a|no] {plain_symptom:@a}
- [negation >@a,@b,@c|neg for] {plain_symptom:@a}, {plain_symptom:@b}, {plain_symptom:@c}
- [negation >@a,@b|-] {plain_symptom:@a}/{plain_symptom:@b}
opening:
- {age}{mf} h/o {disease:@a}, {disease:@b} c/o {symptom:@c} {lasting:@c}, {denial:@n}.
- {age}yo {mf} w/ {disease:@a} p/w {symptom:@b} + {symptom:@c} {lasting:@b,@c}.
- pt c/o {symptom:@a} {lasting:@a}, {denial:@n}.
- {age} y/o {mf} s/p {operation:@a} {when:@a}, here for f/u of {disease:@b}.
complaint:
- {symptom:@a} [course >@a|<worse~better~unchanged~improving>] {lasting:@a}, {denial:@n}.
- also {symptom:@a} w/ {symptom:@b}, {denial:@n}.
- states {symptom:@a} started {onset:@a} after <fall~lifting boxes~argument at home~long drive~soccer game>.
- {treated:@a} [course >@a|<better~improved>] w/ {ordered_name:@b}, still has {symptom:@c}.
- reports [problem @a|stress] at work, {symptom:@b} most nights.
- thinks caught [problem @a|cold] from kids, {symptom:@b} {lasting:@b}.
history:
- {disease:@a}, {disease:@b}, s/p {operation:@c} {past:@c}.
- {disease:@a} (dx [temporal >@a|{year}]), {operation:@b} {past:@b}.
- [negation >@a,@b|no h/o] {disease:@a} or {disease:@b}.
- {disease:@a}, {disease:@b}, {disease:@c}.
- {operation:@a} {past:@a}, {operation:@b} {past:@b}. [negation >@c|Never had] {operation:@c}.
family:
- [subject >@a|{kin}] w/ {inherited:@a}, [subject >@b|{kin}] w/ {inherited:@b}.
- [subject >@a|{kin}] {inherited:@a} at {relative_age}.
- [negation >@a|neg] for {inherited:@a} in [subject >@a|family].
kin:
- mom
- dad
- sis
- bro
- MGM
- pat uncle
- daughter
medicine:
* {prescription:@a}, {prescription:@b}, {prescription:@c}.
- {prescription:@a} for {indication:@b}, {drug:@c} for {indication:@d}.
* {prescription:@a}; {prescription:@b}.
* {short_course:@a} [duration >@a|x{digit}d], {drug:@b} [negation >@b|d/c'd] {when:@b}.
- {prescription:@a} started {when:@a}; [negation >@b|not taking] {drug:@b}.
- [drug @a|Ca] [strength >@a|500 mg] [frequency >@a|BID], {prescription:@b}.
- [drug @a|lithium] [strength >@a|<300~450~600> mg] [frequency >@a|<BID~TID~QHS>], {prescription:@b}.
vitals_line:
- {vitals:@}.
exam:
- {sign:@a}, {sign:@b}, [negation >@c|no] {plain_sign:@c}.
- in NAD, [test @a|lungs] [labvalue >@a|<CTAB~clear~coarse>], [test @b|heart] [labvalue >@b|<RRR~irreg>],
  [negation >@c,@d|no] {plain_sign:@c}/{plain_sign:@d}.
- [test @a|ROM] [labvalue >@a|<full~limited~nl>], {sign:@b}, [test @c|strength] [labvalue >@c|<5/5~4/5~3/5>].
- [test @a|abd] [labvalue >@a|<soft~benign>], + {sign:@b}, [negation >@c|no] {plain_sign:@c}.
labs:
- drawn [temporal >@a,@b|{date}]. {lab:@a}, {lab:@b}.
* {lab:@a}, {lab:@b}, {lab:@c}.
* {lab:@a}, {lab:@b}.
- {lab:@a}, {lab:@b}, [test @c|Ca] [labvalue >@c|<8.2~9.1~10.6~11.4>].
* {lab:@a}, {study:@b} [labvalue >@b|<neg~pos~WNL~pending>].
- [test @a|lithium] [labvalue >@a|<0.4~0.7~0.9~1.3~1.6>], {lab:@b}.
imaging:
- {image:@a} reviewed w/ pt. Done {when:@a}, {seen:@b}.
* {image:@a} {when:@a}: {seen:@b}, [negation >@c|no] {unseen:@c}.
* {image:@a} [labvalue >@a|<neg~nl~WNL>], {image:@b} {when:@b} w/ {seen:@c}.
- {image:@a} done {when:@a}. Showed {seen:@b}.
- [test @a|stress test] {when:@a} [labvalue >@a|<neg~pos~equivocal>].
- [test @a|XR]: [problem @b,@c|DJD] [problem @b|L] and [problem @c|R <knee~wrist~hip>].
assessment:
- {treated:@a}, [course >@a|<stable~worse~improved>]. Cont {ordered:@b}.
- [uncertain >@a|<?~poss~prob~likely>] {suspect:@a}, check {bare_workup:@b}.
- {symptom:@a} [uncertain >@b|likely] 2/2 {suspect:@b}, check {bare_workup:@c}.
- {disease:@a}, [uncertain >@b|r/o] {suspect:@b} w/ {bare_workup:@c}.
- {disease:@a} s/p {operation:@b}, [negation >@c|no] {plain_symptom:@c} [temporal >@c|today].
plan:
- start {short_course:@a} [duration >@a|x{digit}d], {study:@b} [temporal >@b|<tmrw~next wk~{short_day}>].
- refer for {operation:@a}, recheck {lab_name:@b} [temporal >@b|<in 2 wks~next wk~tmrw~in 3 mo>].
- RTC [condition >@a,@b|if] {plain_symptom:@a} or {plain_symptom:@b}.
- hold {drug:@a} til [temporal >@a|{short_day}], [negation >@b|no] {therapy:@b} for now.
- to ER [condition >@a|if] {plain_symptom:@a}, f/u w/ PCP.
- d/c home, f/u 2 wks, precautions given.
""")

TELEGRAPHIC = House(
    name="telegraphic",
    sections=(
        Section(heading="HPI:", rules=("opening", "complaint"), least=2, most=3),
        Section(heading="PMH:", rules=("history",), most=1, share=0.65),
        Section(heading="FH:", rules=("family",), most=1, share=0.4),
        Section(heading="Meds:", rules=("medicine",), most=2, share=0.8),
        Section(heading="VS:", rules=("vitals_line",), most=1, share=0.55),
        Section(heading="PE:", rules=("exam",), most=1, share=0.6),
        Section(heading="Labs:", rules=("labs",), most=1, share=0.6),
        Section(heading="Imaging:", rules=("imaging",), most=1, share=0.55),
        Section(heading="A/P:", rules=("assessment", "plan"), least=2, most=3),
    ),
    rules=_RULES,
    frequency=spelled(
        "daily/QD/qday",
        "BID",
        "TID",
        "QID",
        "5x/day",
        "QHS/qhs",
        "qAM",
        "PRN/prn",
        "q4h",
        "q6h",
        "q8h",
        "q12h",
        "q72h",
        "qwk/weekly",
        "qmo/monthly",
        "q3wk",
        "q8wk",
        "x1",
    ),
    form={
        "tablet": ("tab", "tabs"),
        "capsule": ("cap", "caps"),
        "injection": ("inj",),
        "ointment": ("oint",),
        "solution": ("soln",),
        "suspension": ("susp",),
        "inhaler": ("inh", "MDI"),
        "dose tablet": ("1 tab", "2 tabs"),
        "dose capsule": ("1 cap", "2 caps"),
        "dose inhaler": ("2 puffs", "1 puff"),
    },
    route={
        "oral": ("PO", "po"),
        "intravenous": ("IV", "IVPB"),
        "subcutaneous": ("SQ", "SC"),
        "intramuscular": ("IM",),
        "inhaled": ("INH",),
        "topical": ("top",),
        "sublingual": ("SL",),
        "intraarticular": ("IA",),
    },
    capital=False,
)
