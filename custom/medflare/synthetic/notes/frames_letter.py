# SPDX-License-Identifier: Apache-2.0
"""The letter house: a consultant's letter to a general practitioner in British spelling."""

from __future__ import annotations

from .house import House, Section, frames, spelled
from .tables import BRITISH

_RULES = frames("""
date:
- {day} {month} {this_year}
- {day}/{month_number}/{this_year_short}
when:
- [temporal >@|<last week~last month~two weeks ago~yesterday>]
- in [temporal >@|{month}]
- on [temporal >@|{date}]
- [temporal >@|{number} months ago]
past:
- in [temporal >@|{year}]
- in [temporal >@|{month} {year}]
- [temporal >@|{number} years ago]
onset:
- [temporal >@|{number} weeks ago]
- in [temporal >@|{month}]
- [temporal >@|last {weekday}]
lasting:
- over [temporal >@|the preceding {number} days]
- for [temporal >@|a fortnight]
- for [temporal >@|some {number} weeks]
- since [temporal >@|{month}]
lab_form:
- [test @|NAME] of [labvalue >@|VALUE]
- [test @|NAME] [labvalue >@|VALUE]
- [test @|NAME] [labvalue >@|VALUE] (normal range [reference_range >@|RANGE])
degrees:
- °C
vital_form:
- [test @|NAME] [labvalue >@|VALUE]
- [test @|NAME] [labvalue >@|VALUE]
vital_bp:
- blood pressure
vital_pulse:
- pulse rate
vital_temp:
- temperature
vital_breaths:
- respiratory rate
vital_oxygen:
- saturations
- oxygen saturations
vital_weight:
- weight
rx_form:
- NAME STRENGTH OFTEN
- NAME STRENGTH FORM OFTEN
- ROUTE NAME STRENGTH OFTEN
denial:
- {he} has had [negation >@a,@b|no] {plain_symptom:@a} or {plain_symptom:@b}
- {he} [negation >@a,@b|did not report] {plain_symptom:@a} or {plain_symptom:@b}
- {he} [negation >@a,@b,@c|denied] {plain_symptom:@a}, {plain_symptom:@b} and {plain_symptom:@c}
salutation:
- Dear Dr. <Ashworth~Pritchard~Macleod~O'Connell~Nwosu~André>, thank you for referring this {age}-year-old
  <retired teacher~lorry driver~office worker~farmer~retired nurse~publican> with {symptom:@a} {lasting:@a}.
- Dear Colleague, I reviewed this {age}-year-old {sex} with {disease:@a} in clinic and {he} has ongoing
  {symptom:@b}.
- Dear Dr. <Hughes~Bowen~Khatri~Desmond>, many thanks for asking us to see this {age}-year-old {sex}, whose
  {symptom:@a} began {onset:@a} on a background of {disease:@b}.
diagnosis:
- {disease:@a}
- {disease:@a} (diagnosed [temporal >@a|{year}])
- [uncertain >@a|<Possible~Probable~Query>] {disease:@a}
- {operation:@a}, [temporal >@a|{month} {year}]
- {disease:@a}, [course >@a|<quiescent~well controlled~progressing~stable>]
story:
- {he} also mentioned {symptom:@a}. This started {onset:@a} and {denial:@n}.
- {own_symptom:@a} had been [course >@a|<deteriorating~settling~grumbling on>] {lasting:@a}, and {denial:@n}.
- {he} noticed {symptom:@a} and {symptom:@b} {lasting:@a,@b}, although {denial:@n}.
- {he} put {own_symptom:@a} down to [problem @b|a cold], but {symptom:@c} followed within days.
- On direct questioning {denial:@n}.
- {own_treated:@a} [course >@a|<settled~eased>] with {ordered_name:@b} but {he} remains troubled by
  {symptom:@c}.
history:
- {he} also mentioned {symptom:@a}. This started {onset:@a} and {denial:@n}.
- {he} is known to have {disease:@a} and {disease:@b} and underwent {operation:@c} {past:@c}.
- Past history includes {disease:@a} and {operation:@b} {past:@b}.
- There is [negation >@a,@b|no past history of] {disease:@a} or {disease:@b}.
- {he} [negation >@a|declined] {operation:@a} {past:@a} and has [negation >@b|never undergone]
  {operation:@b}.
family:
- {his} [subject >@a|{relative}] suffered from {inherited:@a} and a [subject >@b|{cousin}] has
  {inherited:@b}.
- There is a [subject >@a|family] history of {inherited:@a}.
- [negation >@a|None] of {his} [subject >@a|siblings] has had {inherited:@a}.
cousin:
- cousin
- nephew
- half-brother
- twin sister
medicine:
* {his} regular medication comprises {prescription:@a}, {prescription:@b} and {prescription:@c}.
- I have started {short_course:@a} [duration >@a|for {number} days] and stopped {drug:@b}.
* {he} takes {prescription:@a} and {prescription:@b}, but [negation >@c|no longer] uses {drug:@c}.
- {he} has been on {prescription:@a} since [temporal >@a|{month} {year}] and buys [drug @b|calcium] [form
  >@b|tablets] over the counter.
- {he} took [dosage >@a|two] [form >@a|<tablets~capsules>] of [drug
  @a|<paracetamol~senna~co-codamol~aspirin~ibuprofen>] [frequency >@a|<each night~bd~with meals>].
exam:
- On examination {vitals:@}.
- {he} looked well, with {sign:@a} but [negation >@b,@c|no] {plain_sign:@b} or {plain_sign:@c}.
- [test @a|Heart sounds] were [labvalue >@a|<normal~dual with nil added>] and [test @b|the chest] was
  [labvalue >@b|<clear~clear to bases>], with {sign:@c}.
- [test @a|The abdomen] was [labvalue >@a|<soft and non-tender~soft>]. I found [negation >@b|no]
  {plain_sign:@b}.
result:
- Bloods were taken [temporal >@a,@b|<last week~on {date}~in clinic today>]. They showed {lab:@a} and
  {lab:@b}.
* Bloods showed {lab:@a}, {lab:@b} and {lab:@c}.
- Recent results were {lab:@a} and {lab:@b}.
* {an_image:@a} {when:@a} confirmed {seen:@b} and [negation >@c|excluded] {unseen:@c}.
* {an_image:@a} took place {when:@a}. This revealed {seen:@b} with {seen:@c}.
- {a_study:@a} {was} [labvalue >@a|<reassuring~normal~unremarkable~entirely normal>] and {a_study:@b}
  [temporal >@b|last week] {was} [labvalue >@b|<negative~positive>].
- [test @a|An exercise stress test] {when:@a} was [labvalue >@a|<negative~positive>], with {lab:@b}.
- [test @a|Adjusted calcium] was [labvalue >@a|<2.1~2.4~2.7~2.9> mmol/L] ([reference_range >@a|2.20-2.60]),
  with {lab:@b}.
- [test @a|CT] showed [problem @b,@c|thickening of the] [problem @b|right] and [problem @c|left
  <pleura~ureters~adrenals>].
thought:
- I [uncertain >@a|suspect] {suspect:@a} and have requested {workup:@b} to be done [temporal >@b|<within the
  fortnight~next month~urgently>].
- The working diagnosis is {disease:@a}, though {suspect:@b} remains [uncertain >@b|a possibility] and I have
  booked {workup:@c}.
- We have listed {him} for {operation:@a} [temporal >@a|<in the new year~next month~on {date}>] and
  {lab_name:@b} will be repeated [temporal >@b|beforehand].
- I would be grateful if you could prescribe {short_course:@a} [duration >@a|for {number} weeks] and repeat
  {lab_name:@b} [temporal >@b|in {number} weeks].
- {operation:@a} is [negation >@a|not required] at present, and {treated:@b} is [course >@b|stable] on
  {ordered:@c}.
advice:
- I have advised {him} to attend casualty [condition >@a,@b|in the event of] {plain_symptom:@a} or
  {plain_symptom:@b}.
- Please refer back [condition >@a|should] {plain_symptom:@a} recur.
- {he} will ring us [condition >@a,@b|if] there is any {plain_symptom:@a} or {plain_symptom:@b}.
- I have not arranged routine follow-up and have discharged {him} back to your kind care.
""")

LETTER = House(
    name="letter",
    sections=(
        Section(heading="Diagnoses:", rules=("diagnosis",), least=1, most=3, share=0.6, listed=True),
        Section(heading="", rules=("salutation", "story"), least=2, most=2),
        Section(heading="", rules=("history", "family"), least=1, most=2, share=0.65),
        Section(heading="", rules=("medicine",), least=1, most=1, share=0.85),
        Section(heading="", rules=("exam", "result", "result"), least=2, most=3),
        Section(heading="", rules=("thought", "advice"), least=2, most=2),
    ),
    rules=_RULES,
    frequency=spelled(
        "od/once daily",
        "bd/twice daily",
        "tds",
        "qds",
        "five times daily",
        "nocte/at night",
        "mane/in the morning",
        "prn/as required",
        "4-hourly",
        "6-hourly",
        "8-hourly",
        "12-hourly",
        "every 72 hours",
        "weekly",
        "monthly",
        "three-weekly",
        "eight-weekly",
        "stat",
    ),
    form={
        "tablet": ("tablets",),
        "capsule": ("capsules",),
        "inhaler": ("inhaler", "puffer"),
        "dose tablet": ("one tablet", "two tablets"),
        "dose capsule": ("one capsule",),
        "dose inhaler": ("two puffs",),
    },
    route={
        "oral": ("oral",),
        "intravenous": ("intravenous", "IV"),
        "subcutaneous": ("subcutaneous", "s/c"),
        "intramuscular": ("i/m",),
        "inhaled": ("inhaled",),
        "topical": ("topical",),
        "sublingual": ("sublingual", "buccal"),
        "intraarticular": ("intra-articular",),
    },
    spelling=BRITISH,
)
