# SPDX-License-Identifier: Apache-2.0
"""The narrative house: full prose in paragraphs without headings."""

from __future__ import annotations

from .house import House, Section, frames, spelled

_RULES = frames("""
date:
- {month} {day}, {this_year}
- {month_number}/{day}/{this_year}
when:
- [temporal >@|<last week~last month~two weeks ago~yesterday>]
- in [temporal >@|{month}]
- on [temporal >@|{date}]
- [temporal >@|{number} months ago]
- [temporal >@|last {weekday}]
past:
- in [temporal >@|{year}]
- in [temporal >@|{month} {year}]
- [temporal >@|{number} years ago]
onset:
- [temporal >@|{number} days ago]
- [temporal >@|last {weekday}]
- on [temporal >@|the morning of admission]
- [temporal >@|the day before yesterday]
- [temporal >@|about {number} weeks ago]
lasting:
- for [temporal >@|the past {number} days]
- for [temporal >@|about {number} weeks]
- for [temporal >@|approximately {number} months]
- since [temporal >@|{weekday}]
- since [temporal >@|yesterday morning]
lab_form:
- [test @|NAME] <of~at> [labvalue >@|VALUE]
- [test @|NAME] of [labvalue >@|VALUE] with a reference range of [reference_range >@|RANGE]
degrees:
-  degrees
-  °F
-
vital_form:
- [test @|NAME] was [labvalue >@|VALUE]
- [test @|NAME] was [labvalue >@|VALUE]
vital_bp:
- blood pressure
- the blood pressure
vital_pulse:
- heart rate
- pulse
vital_temp:
- temperature
vital_breaths:
- respiratory rate
vital_oxygen:
- oxygen saturation
- pulse oximetry
vital_weight:
- weight
- body weight
rx_form:
- NAME STRENGTH FORM ROUTE OFTEN
- NAME STRENGTH FORM OFTEN
- STRENGTH of NAME OFTEN
- NAME STRENGTH OFTEN
denial:
- [negation >@a,@b|denies] {plain_symptom:@a} and {plain_symptom:@b}
- [negation >@a,@b,@c|denies] any {plain_symptom:@a}, {plain_symptom:@b}, or {plain_symptom:@c}
- has had [negation >@a,@b|no] {plain_symptom:@a} or {plain_symptom:@b}
- has been [negation >@a|without] {plain_symptom:@a}
opening:
- {mr} <Walker~Alvarez~Bennett~Okafor~Lindqvist~Moreau~Petrov~Reyes> is a(n) {age}-year-old {sex} with a
  history of {disease:@a}, {disease:@b}, and {disease:@c}, who presented with {symptom:@d} {lasting:@d}.
- This is a(n) {age}-year-old {sex} with known {disease:@a} and {disease:@b} who was referred because of
  {symptom:@c} {lasting:@c}.
- The patient is a very pleasant {age}-year-old {sex} who came to the emergency department with {symptom:@a}
  and {symptom:@b} that began {onset:@a,@b}.
- The patient is a(n) {age}-year-old {female}, diagnosed with {disease:@a} {past:@a}, who returns for
  evaluation of {own_symptom:@b}.
complaint:
- {he} also complains of {symptom:@a} and {symptom:@b}. Both began {onset:@a,@b}.
- {he} describes {symptom:@a} that had been present {lasting:@a} and {denial:@n}.
- {own_symptom:@a} had been [course >@a|<worsening~improving~getting worse~increasing>] {lasting:@a}, and
  {he} also reports {symptom:@b}.
- {he} <also ~>{denial:@n}, but {he} does report {symptom:@d} {lasting:@d}.
- {he} states that {own_symptom:@a} woke {him} from sleep [temporal >@a|<last night~two nights ago~this
  morning>] and was accompanied by {symptom:@b}.
- {own_treated:@a} [course >@a|<resolved~improved~subsided>] after {he} took {ordered_name:@b} at home,
  although {he} continued to have {symptom:@c}.
- {he} thought that {he} had [problem @a|a cold] because of {symptom:@b}, but {he} has [negation >@c|not] had
  {plain_symptom:@c}.
- {he} has been under a great deal of [problem @a|stress] at work and since then has noticed {symptom:@b}.
history:
- {his} past history is significant for {disease:@a}, {disease:@b}, and {operation:@c} {past:@c}.
- {he} underwent {operation:@a} {past:@a} and {operation:@b} {past:@b}.
- {he} has [negation >@a|never required] {operation:@a}, and {his} {disease:@b} has been managed with
  {therapy:@c}.
- {he} carries a diagnosis of {disease:@a} and underwent {operation:@b} {past:@b}.
- There is [negation >@a,@b|no history of] {disease:@a} or {disease:@b}.
- {he} did [negation >@a|not] undergo {operation:@a} when it was offered {past:@a}.
family:
- {his} [subject >@a|{relative}] <had~died of~was diagnosed with> {inherited:@a} at the age of
  {relative_age}, and {his} [subject >@b|{relative}] has {inherited:@b}.
- Family history is notable for {inherited:@a} in {his} [subject >@a|{relative}].
- There is [negation >@a|no] [subject >@a|family] history of {inherited:@a}.
- {his} [subject >@a|{relative}] is alive at {relative_age} with {inherited:@a}.
medicine:
* {he} takes {prescription:@a}, {prescription:@b}, and {prescription:@c}.
- {he} has been maintained on {prescription:@a} and {prescription:@b} [negation >@c|without] [problem @c|side
  effects].
- For {his} {treated:@a} {he} uses {ordered:@b}, and {drug:@c} was added {when:@c}.
* {his} current medications include {prescription:@a}, {prescription:@b}, and {drug:@c} for
  {own_indication:@d}.
* {he} was started on {short_course:@a} [duration >@a|for {number} days] because of {indication:@b}.
- {he} has been taking {prescription:@a} since [temporal >@a|{month}], and {drug:@b} was stopped {when:@b}.
- {he} is [negation >@a|no longer taking] {drug:@a} because it caused {symptom:@b}.
- In addition {he} takes [drug @a|calcium] [strength >@a|600 mg] [frequency >@a|twice a day] and
  {prescription:@b}.
exam:
- On examination {vitals:@}.
- On admission {vitals:@}, with [negation >@a,@b|no] {plain_sign:@a} or {plain_sign:@b}.
- [test @a|Physical examination] revealed {sign:@b} and {sign:@c} but [negation >@d|no] {plain_sign:@d}.
- [test @a|The heart rhythm] was [labvalue >@a|<regular~irregular>], [test @b|breath sounds] were [labvalue
  >@b|<clear~diminished~coarse>], with {sign:@c}.
- [test @a|The abdomen] was [labvalue >@a|<soft~benign~distended>]. We noted [negation >@b,@c|no]
  {plain_sign:@b} or {plain_sign:@c}.
- {he} appeared well [negation >@b,@c|without] {plain_sign:@b} or {plain_sign:@c}, and [test @d|{his} weight]
  was [labvalue >@d|<unchanged~stable~down 3 kg~up 2 kg>].
result:
- {an_image:@a} was obtained {when:@a}. It was [labvalue >@a|<normal~unremarkable~negative>] [negation
  >@b|without] {unseen:@b}.
* Laboratory studies showed {lab:@a}, {lab:@b}, and {lab:@c}.
- Blood work was remarkable for {lab:@a} and {lab:@b}, and {study:@c} {was} [labvalue >@c|negative].
- The remaining laboratory values were {lab:@a} and {lab:@b}.
* [temporal >@a,@b|<yesterday~this morning~today>] the laboratory reported {lab:@a} with {lab:@b}.
* {an_image:@a} {when:@a} showed {seen:@b} and [negation >@c|no evidence of] {unseen:@c}.
- {an_image:@a} was performed {when:@a}. It showed {seen:@b} and was otherwise [labvalue >@a|unremarkable].
- {an_image:@a} {was} [labvalue >@a|<normal~unremarkable~negative~within normal limits>] [negation
  >@b|without evidence of] {unseen:@b}.
- [test @a|A stress test] {when:@a} was [labvalue >@a|<negative~positive~equivocal>] and {a_study:@b} {was}
  [labvalue >@b|<normal~unremarkable>].
- [test @a|The calcium] was [labvalue >@a|<8.1~9.4~10.9~11.6>] with {lab:@b}.
- [test @a|X-rays] {when:@a} demonstrated [problem @b,@c|arthritis of the] [problem @b|<hands~hips>] and
  [problem @c|<knees~feet>].
thought:
- {he} most [uncertain >@a|likely] has {suspect:@a}, and {workup:@c} will be done [temporal
  >@c|<tomorrow~today~this afternoon>].
- My impression is that {own_symptom:@a} [uncertain >@b|may be] due to {suspect:@b}, and we have ordered
  {workup:@c} for [temporal >@c|{weekday}].
- The picture is consistent with [uncertain >@a|possible] {disease:@a}, and to [uncertain >@b|rule out]
  {suspect:@b} we will obtain {workup:@c}.
- {he} was counseled about {therapy:@a}, and {lab_name:@b} will be repeated in [temporal >@b|{number} weeks].
- We elected to proceed with {operation:@a} [temporal >@a|<tomorrow~next week~this afternoon>] and to
  continue {prescription:@b}.
- There was no reason for a change of the plan, and {drug:@a} will be held until [temporal >@a|{weekday}].
advice:
- {he} should return [condition >@a,@b|if] {he} develops {plain_symptom:@a} or {plain_symptom:@b}.
- {he} was told to call [condition >@a|in case of] {plain_symptom:@a} and to continue {prescription:@b}.
- I asked {him} to come back [condition >@a|if] {he} has any {plain_symptom:@a}, and {lab_name:@b} will be
  checked [temporal >@b|<in one week~next month~at the next visit>].
- {he} was discharged home in stable condition and will be seen in the clinic.
""")

NARRATIVE = House(
    name="narrative",
    sections=(
        Section(heading="", rules=("opening", "complaint"), least=2, most=3),
        Section(heading="", rules=("history", "family"), least=1, most=2, share=0.75),
        Section(heading="", rules=("medicine",), least=1, most=1, share=0.85),
        Section(heading="", rules=("exam", "result"), least=2, most=3),
        Section(heading="", rules=("thought", "advice"), least=1, most=2),
    ),
    rules=_RULES,
    frequency=spelled(
        "daily/once daily/every day",
        "twice daily/twice a day",
        "three times a day/three times daily",
        "four times a day",
        "five times a day",
        "at bedtime/nightly",
        "every morning/in the morning",
        "as needed",
        "every four hours",
        "every six hours/every 6 hours",
        "every eight hours",
        "every twelve hours",
        "every three days",
        "once a week/weekly",
        "once a month/monthly",
        "every three weeks",
        "every eight weeks",
        "once",
    ),
    form={
        "tablet": ("tablets", "tablet"),
        "capsule": ("capsules", "capsule"),
        "inhaler": ("inhaler",),
        "dose tablet": ("one tablet", "two tablets"),
        "dose capsule": ("one capsule", "two capsules"),
        "dose inhaler": ("two puffs", "one puff"),
    },
    route={
        "oral": ("by mouth", "orally"),
        "intravenous": ("intravenously", "IV"),
        "subcutaneous": ("subcutaneously",),
        "intramuscular": ("intramuscularly",),
        "inhaled": ("by inhalation", "inhaled"),
        "topical": ("topically", "to the skin"),
        "sublingual": ("under the tongue", "sublingually"),
        "intraarticular": ("into the joint",),
    },
)
