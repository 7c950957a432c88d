# SPDX-License-Identifier: Apache-2.0
"""The dictated house: upper-case headers and long sentences that run on."""

from __future__ import annotations

from .house import House, Section, frames, spelled

_RULES = frames("""
date:
- {month} {day}
- the {day}th of {month}
- {month_number}/{day}/{this_year_short}
when:
- [temporal >@|<last week~last month~two weeks ago~yesterday>]
- in [temporal >@|{month}]
- on [temporal >@|{date}]
- [temporal >@|{number} weeks back]
past:
- in [temporal >@|{year}]
- back in [temporal >@|{year}]
- [temporal >@|some {number} years ago]
onset:
- [temporal >@|last {weekday}]
- [temporal >@|{number} days ago]
- [temporal >@|this past weekend]
lasting:
- over [temporal >@|the last {number} days]
- for [temporal >@|the better part of {number} weeks]
- for [temporal >@|{number} or so days]
lab_form:
- [test @|<{his}~the> NAME] <is~was~came back at~came back> [labvalue >@|VALUE]
- [test @|NAME] [labvalue >@|VALUE], normal being [reference_range >@|RANGE]
- [test @|NAME] <is~was> [labvalue >@|VALUE]
degrees:
- degrees
- degrees Fahrenheit
vital_form:
- [test @|NAME] is [labvalue >@|VALUE]
- [test @|NAME] [labvalue >@|VALUE]
vital_bp:
- blood pressure
- pressure
vital_pulse:
- pulse
vital_temp:
- temperature
- temp
vital_breaths:
- respiratory rate
vital_oxygen:
- pulse ox
- saturation on room air
vital_weight:
- weight today
rx_form:
- NAME STRENGTH FORM ROUTE OFTEN
- NAME STRENGTH OFTEN
- NAME, STRENGTH, OFTEN
denial:
- [negation >@a,@b,@c|denies] {plain_symptom:@a} or {plain_symptom:@b} or {plain_symptom:@c}
- [negation >@a,@b|really has not had any] {plain_symptom:@a} or {plain_symptom:@b}
- [negation >@a|has no] {plain_symptom:@a}
opening:
- This is a(n) {age}-year-old {female} whom I have been following for {disease:@a} and {disease:@b} and who
  comes in today with {symptom:@c} going on {lasting:@c} and {he} {denial:@n}.
- {mr} X is a(n) {age}-year-old {female} with {disease:@a} and {disease:@b} who was in {his} usual state of
  health until {onset:@c} when {he} developed {symptom:@c} and then {symptom:@d}.
- Patient is seen at the request of Dr. Y for {symptom:@a} {lasting:@a}, and {he} is known to have
  {disease:@b}.
complaint:
- {he} tells me that {own_symptom:@a} got [course >@a|<a lot worse~somewhat better>] and that {he} also has
  {symptom:@b} and {he} {denial:@n}.
- {he} tried {drug:@a} for {own_indication:@b} which [course >@b|<eased~cleared up~went away>] but now {he}
  has {symptom:@c} {lasting:@c}.
- {he} had what sounds like [problem @a|a cold] and {own_symptom:@b} never quite went away after that.
history:
- Significant for {disease:@a} and {disease:@b} and {he} had {operation:@c} {past:@c} and {operation:@d}
  {past:@d}.
- {disease:@a} and {disease:@b}, and [negation >@c|no history of] {disease:@c}.
- {he} had {operation:@a} {past:@a} and carries a diagnosis of {disease:@b} and {he} has [negation >@c|never
  had] {operation:@c}.
family:
- {his} [subject >@a|{relative}] had {inherited:@a} and {his} [subject >@b|{relative}] had {inherited:@b}.
- [subject >@a|{relative}] passed away of {inherited:@a} at {relative_age} and there is [negation >@b|no]
  {inherited:@b} in the [subject >@b|immediate family].
medicine:
* {he} is on {prescription:@a} and {prescription:@b} and {prescription:@c}.
* {prescription:@a}, {prescription:@b}, and {he} was given {short_course:@c} [duration >@c|for {number}
  days].
* For {treated:@a} {he} takes {ordered:@b} and at times {drug:@c} for {indication:@d}.
- {he} ran out of {drug:@a} {when:@a} and is [negation >@b|not on] {drug:@b} but takes {prescription:@c}.
- {he} is on [drug @a|calcium] [dosage >@a|one] [form >@a|tablet] [frequency >@a|a day] and
  {prescription:@b}.
exam:
- {vitals:@} and {he} has {sign:@a} but [negation >@b|no] {plain_sign:@b}.
- {vitals:@}, [test @a|the lungs] are [labvalue >@a|<clear~clear bilaterally~diminished>] and [test @b|the
  heart] is [labvalue >@b|<regular~irregular>] and I find [negation >@c,@d|no] {plain_sign:@c} or
  {plain_sign:@d}.
- [test @a|neurologic exam] is [labvalue >@a|<nonfocal~intact>] with {sign:@b} and {sign:@c}.
result:
- We got {an_image:@a} as {he} was worried. That was done {when:@a} and it shows {seen:@b}.
* {lab:@a}, {lab:@b}, and {lab:@c} and {a_study:@d} done {when:@d} {was} [labvalue
  >@d|<normal~okay~unremarkable>].
* {an_image:@a} {when:@a} showed {seen:@b} and I see [negation >@c|no] {unseen:@c}.
- I reviewed {an_image:@a} done {when:@a}. That shows {seen:@b} and {seen:@c}.
- {lab:@a} and [test @b|calcium] is [labvalue >@b|<8.6~9.3~10.8~11.5>] and {a_study:@c} {was} [labvalue
  >@c|<negative~positive>].
- [test @a|x-rays] done {when:@a} show [problem @b,@c|arthritis in the] [problem @b|<hands~hips>] and
  [problem @c|<feet~knees>].
thought:
- I think this is [uncertain >@a|probably] {disease:@a} although {suspect:@b} is [uncertain >@b|possible] and
  I am going to get {workup:@c} [temporal >@c|<tomorrow~next week~in the morning>].
- {treated:@a} which is [course >@a|<stable~doing better~not well controlled>] and we will continue
  {ordered:@b}.
- I would go ahead with {operation:@a} [temporal >@a|<next week~this week~in the spring>] and start
  {short_course:@b} [duration >@b|for {number} weeks] and recheck {lab_name:@c} after that.
- [uncertain >@a|Question of] {suspect:@a}, and there is [negation >@b|no need for] {therapy:@b} right now.
advice:
* {he} knows to call me [condition >@a,@b|if] {he} has any {plain_symptom:@a} or {plain_symptom:@b} and
  otherwise I will see {him} back in the office.
* I told {him} to go to the emergency room [condition >@a|should] {he} develop {plain_symptom:@a}.
- Thank you for letting me take part in the care of this pleasant patient.
""")

DICTATED = House(
    name="dictated",
    sections=(
        Section(heading="REASON FOR VISIT", rules=("opening", "complaint"), least=1, most=2),
        Section(heading="PAST HISTORY", rules=("history",), most=1, share=0.7),
        Section(heading="FAMILY HISTORY", rules=("family",), most=1, share=0.4),
        Section(heading="MEDICATIONS", rules=("medicine",), most=1, share=0.85),
        Section(heading="EXAM", rules=("exam",), most=1, share=0.8),
        Section(heading="DATA", rules=("result",), most=2, share=0.9),
        Section(heading="IMPRESSION AND PLAN", rules=("thought", "advice"), least=2, most=3),
    ),
    rules=_RULES,
    frequency=spelled(
        "daily/a day/once a day",
        "twice a day/two times a day",
        "three times a day",
        "four times a day",
        "five times a day",
        "at night/at bedtime",
        "each morning",
        "as needed/when needed",
        "every 4 hours",
        "every 6 hours",
        "every 8 hours",
        "every 12 hours",
        "every third day",
        "once weekly",
        "once monthly",
        "every third week",
        "every eighth week",
        "one time",
    ),
    form={
        "tablet": ("tablet", "pill"),
        "capsule": ("capsule", "pill"),
        "dose tablet": ("one tablet", "one pill", "two tablets"),
        "dose capsule": ("one capsule",),
        "dose inhaler": ("two puffs",),
    },
    route={
        "oral": ("by mouth", "p.o."),
        "intravenous": ("IV", "by vein"),
        "subcutaneous": ("subcu", "under the skin"),
        "intramuscular": ("IM",),
        "inhaled": ("inhaled",),
        "topical": ("on the skin",),
        "sublingual": ("under the tongue",),
        "intraarticular": ("into the joint",),
    },
    glue=": ",
)
