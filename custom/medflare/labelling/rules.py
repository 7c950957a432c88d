# SPDX-License-Identifier: Apache-2.0
"""The words of the rule labeller: what mentions a condition, and what denies or doubts it.

Classes follow the CheXpert labeler (Irvin et al., AAAI 2019); cues follow NegEx (Chapman et al. 2001).
Everything is matched in lower case, on one sentence. docs/methods/labelling.md says where we depart.
"""

from __future__ import annotations


def phrases(lines: str) -> str:
    """One alternative per line; a line that begins with "+" continues the one above."""
    joined = ""
    for line in filter(None, map(str.strip, lines.splitlines())):
        joined += line[1:] if line.startswith("+") else f"|{line}"
    return joined[1:]


MENTIONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        (),
        phrases(r"""
        pericardial (?:effusion|fluid)s?
        joint effusions?
        effusions? in the joint
        calcified nodul\w*
        (?:granulomatous|urinary|soft tissue|wound|line) (?:\w+ )?infections?
        (?:vertebra\w*|vertebral body|spine|spinal) collapse
        massive
        mass effect
        nipple shadows?
        (?:contrast|breast|soft tissue) opaci\w*
        fractured (?:proximal |lateral |sternal )?(?:leads?|wires?)
        soft tissue (?:edema|swelling)
        (?:lower extremity|pedal) edema
        kerley\w* (?:\w+ )?lines?
        (?:fissur\w*|skin|septal|pleural|mediastinal) lines?
        body wall edema
        opacified vessels?
        body mass
        muscle mass
        increased density of the bones?
    """),
    ),
    (
        ("pneumothorax", "pleural effusion"),
        phrases(r"""
        hydro-?\s?pneumothora\w+
        hemo-?\s?pneumothora\w+
    """),
    ),
    (
        ("pneumothorax",),
        phrases(r"""
        pneumo-?thora\w+
        ptx\b
    """),
    ),
    (
        ("lung lesion", "lung opacity"),
        phrases(r"""
        nodular (?:\w+ ){0,3}(?:opaci\w+|infiltrat\w+)
        mass-?like (?:\w+ ){0,2}opaci\w+
        (?:rounded|round) opaci\w+
    """),
    ),
    (
        ("lung lesion",),
        phrases(r"""
        (?:micro)?nodul(?:es?|osis|osities|osity)\b
        nodular (?:\w+ )?(?:densit\w+|lesions?|focus|foci|shadows?)
        (?:rounded|mass-?like) densit\w+
        mass(?:es)?\b
        (?:lung|pulmonary|lobe|cavitary|cavitating|parenchymal|lingular|hilar) lesions?
        carcinomas?
        neoplas\w+
        tumou?rs?\b
        malignan\w+
        lung cancer
        pulmonary metasta\w+
        metasta\w+ (?:to the lungs?|lung disease)
    """),
    ),
    (
        ("pleural other",),
        phrases(r"""
        (?:pleural|pleuro-?\s?parenchymal|parenchymal pleural) (?:\w+ ){0,2}(?:thickening|scar\w*
        +|plaques?|calcifications?|fibrosis)
        (?:bi)?apical (?:\w+ ){0,2}thickening
        (?:apical|pleural) cap(?:s|ping)?\b
        fibrothorax
        pleural (?:mass|nodul|lesion)\w*
        thickening of the (?:\w+ ){0,3}pleura
    """),
    ),
    (
        ("edema", "heart failure"),
        phrases(r"""
        congestive heart failure
        heart failure
        chf\b
        cardiac decompensation
    """),
    ),
    (
        ("edema",),
        phrases(r"""
        (?:o?edema)\b
        fluid overload
    """),
    ),
    (
        ("congestion",),
        phrases(r"""
        (?:vascular|pulmonary|venous|hilar|perihilar) congestion
        (?:signs of )?congestion
        pulmonary venous hypertension
        vascular (?:indistinctness|prominence)
        indistinct(?:ness of the)? (?:pulmonary )?vasc\w+
        cephalization
        congestive changes?
    """),
    ),
    (
        ("consolidation",),
        phrases(r"""
        consolidat\w+
    """),
    ),
    (
        ("pneumonia",),
        phrases(r"""
        (?:broncho)?pneumonias?\b
        pneumonic
        infections?\b
        infectious\b
        infective\b
    """),
    ),
    (
        ("atelectasis",),
        phrases(r"""
        ate?le(?:c|e)?t[ae]\w+
        (?:lobar|lobe|lung|pulmonary|partial|complete|subsegmental|segmental) collapse
        collapse of the (?:\w+ ){0,3}(?:lobe|lung|lingula)
        collapsed lungs?
    """),
    ),
    (
        ("pleural effusion",),
        phrases(r"""
        effusions?\b
        pleural (?:\w+ )?fluid
        fluid in the (?:\w+ )?(?:fissures?|pleural spaces?)
        ha?emothora\w+
        fissural fluid
    """),
    ),
    (
        ("blunted angle",),
        phrases(r"""
        blunt\w+ (?:of )?(?:\w+ ){0,5}(?:costo-?\s?phrenic|cp\b|angle|sulc)\w*
    """),
    ),
    (
        ("blunted angle",),
        phrases(r"""
        (?:costo-?\s?phrenic|cp)(?: \w+){0,2} (?:angles?|sulc\w+)(?: \w+){0,4} blunt\w+
    """),
    ),
    (
        ("lung opacity",),
        phrases(r"""
        opaci\w+
        infiltrat(?:e|es|ion|ions|ive)\b
        air-?\s?space (?:disease|process|densit\w+|changes?)
        airspaces? disease
        decreased translucency
        increased densit\w+
        (?:focal|patchy|hazy|streaky|basilar|linear) densit\w+
        interstitial (?:lung )?(?:disease|pattern|prominence|thickening|changes?|abnormalit\w+|process
        +|fibrosis)
        (?:pulmonary|lung) fibrosis
        reticul\w+
        parenchymal (?:scar\w*|disease)
        peri-?bronchial (?:cuffing|thickening)
        bronchial wall thickening
        scar(?:ring|s)?\b
        ground-?\s?glass
    """),
    ),
    (
        ("fracture",),
        phrases(r"""
        fractur\w+
    """),
    ),
    (
        ("support devices",),
        phrases(r"""
        pace-?\s?makers?\b
        pacers?\b
        pacing (?:wires?|leads?|device)
        icd\b
        aicd\b
        defibrillator\w*
        (?:endotracheal|nasogastric|orogastric|enteric|feeding|tracheostomy|chest|thoracostomy|dobbhoff
        +|dobhoff|ng|og|et|drainage|gastric|pleural)[- ](?:tubes?|drains?|catheters?)\b
        tubes?\b
        drains?\b
        pigtails?\b
        catheters?\b
        picc\b
        port-?a-?\s?cath\w*
        mediports?\b
        chest ports?\b
        infusion ports?\b
        vagal nerve stimulator
        (?:central|venous|picc|jugular|subclavian|arterial|dialysis|ij|swan-?ganz
        +|support)(?: venous)? (?:lines?|access)\b
        lines and tubes
        (?:left|right)[- ]sided (?:port|lines?)\b
        swan-?\s?ganz
        tracheostomy\b
        (?:prosthetic|mechanical|bioprosthetic|artificial|replacement|replaced) (?:\w+ )?valves?
        valve (?:replacement|prosthes[ie]s|repair)
        valvular prosthes[ie]s
        (?:support|medical|cardiac|assist|stimulator|implanted|electronic|monitoring|conduction
        +|pacing) devices?
        devices?\b
        hardware\b
        (?:joint|shoulder|hip|humeral) (?:replacement|prosthes[ie]s|arthroplast\w+)
        arthroplast\w+
        (?:surgical|fixation|orthopa?edic|spinal|metallic|cervical|fusion) (?:\w+ )?(?:plates?|rods?
        +|screws?|coils?)\b
        screws?\b
        stents?\b
        balloon pump
        iabp\b
        lvad\b
        cannulas?\b
        embolization coils?
        leads? (?:tips?|terminat|project|in |overl)\w*
        dual[- ]lead
        stimulator\b
        shunt (?:tubing|catheter)
        leads\b
        generator\b
    """),
    ),
    (
        ("cardiomegaly",),
        phrases(r"""
        cardio-?\s?megaly
    """),
    ),
    (
        ("cardiomegaly",),
        phrases(r"""
        (?:cardiac|heart|ventricular|atrial|chamber) (?:enlargement|dilatation|dilation)
        increase in (?:heart|cardiac) size
        (?:enlargement|dilatation|dilation) of (?:the )?(?:\w+ ){0,2}(?:heart|cardiac
        +|ventric\w+)(?: silhouette| size| shadow)?
        cardiac hypertrophy
    """),
    ),
    (
        ("enlarged cardiomediastinum",),
        phrases(r"""
        (?:mediastinal|cardio-?mediastinal) (?:\w+ )?(?:widening|enlargement|broadening)
        (?:widening|enlargement|broadening
        +|prominence) of (?:the )?(?:\w+ ){0,2}(?:cardio-?\s?)?mediastin\w+(?: silhouette| contours?)?
    """),
    ),
)
"""(conditions, pattern). At one place the first match wins: specific phrases stand first, and phrases that
only look like a mention, with no condition, before all. "heart failure", "congestion" and "blunted angle" are
no conditions: labels.py says what follows from them."""

STRUCTURES: tuple[tuple[str, str], ...] = (
    (
        "enlarged cardiomediastinum",
        phrases(r"""
        cardio-?\s?mediastin(?:al|um)(?: (?:silhouettes?|contours?|structures?|shadows?|size|borders?
        +|outlines?))?
        mediastin(?:um|al (?:\w+ (?:and|or) )?(?:silhouettes?|contours?|configuration|structures?
        +|shadows?|size|borders?|outlines?|width))
    """),
    ),
    (
        "cardiomegaly",
        phrases(r"""
        heart(?! (?:failure|disease|valves?|border|rate|block|transplant|surgery|attack))(?: (?:size
        +|silhouette|shadow|contours?))?
        cardiac(?: and (?:hilar|mediastinal|aortic))? (?:silhouettes?|size|shadow|contours?|outline)
        cardiac(?= and mediastinal)
    """),
    ),
    (
        "lung opacity",
        phrases(r"""
        (?:interstitial|lung|bronchovascular|bronchial) markings?
        interstitium
    """),
    ),
)
"""(condition, pattern): body parts whose condition is said by a predicate: "the heart is enlarged"."""

PREDICATES: tuple[tuple[str, str], ...] = (
    (
        "normal",
        phrases(r"""
        (?:near )?(?:upper|top|first) (?:limits?|normal)(?: (?:of )?normal)?
        top-normal
    """),
    ),
    (
        "abnormal",
        phrases(r"""
        borderline (?:enlarged|prominent|cardiomegaly)
    """),
    ),
    (
        "unsure",
        phrases(r"""
        borderline
        (?:may|might|could|possibly|probably|suggestion of|difficult to|cannot|not well|suboptimally
        +|poorly)(?: \w+){0,3}
        (?:obscured|accentuated|exaggerated)(?: \w+){0,3}
    """),
    ),
    (
        "normal",
        phrases(r"""
        (?:not|no longer|without|no|nor) (?:\w+ ){0,3}(?:enlarge\w*|widen\w*|prominent|dilat\w+|increased
        +|abnormal\w*)
        normal\w*
        unremarkable
        within (?:\w+ )?limits?
        negative\b
        nonenlarged
        not remarkable
        clear\b
        (?:has|have) (?:normalized|returned to normal)
    """),
    ),
    (
        "abnormal",
        phrases(r"""
        (?:re)?enlarge\w*
        widen(?:ed|ing)
        wide\b
        dilat\w+
        big\b
        large(?:r|ly)?\b
        prominen\w+
        increased?\b
        thicken\w*
        coarse\w*
        chronic(?:ally)?
        irregular
        broad\w*
        accentuat\w*
        generous
        abnormal\w*
        globular
        cardiomegal\w*
        boot
    """),
    ),
    (
        "unsure",
        phrases(r"""
        stable
        unchanged
        (?:no|without|not) (?:\w+ ){0,2}chang\w*
        similar
        obscured
    """),
    ),
)
"""(verdict, pattern): at one place the first match wins."""

PSEUDO_CUES = phrases(r"""
    not only
    no (?:\w+ ){0,2}(?:changes?|increase|decrease|improvement|progression|worsening|difference)(?= (?:in
    +|of|to|from|since)\b)
    no (?:\w+ ){0,2}change\b
    without (?:\w+ ){0,3}(?:change|changes|improvement|increase|decrease|progression|difficulty)\b
    not (?:\w+ ){0,2}(?:chang|increas|decreas|worsen|improv|progress|clear)\w+
    not (?:yet )?(?:fully |completely )?resolv\w+
    (?:partial|incomplete|near|nearly|almost|partially|incompletely|near-complete)[- ](?:\w+ )?(?:resol
    +|clear)\w+
    gram[- ]negative
    no longer (?:\w+ )?intubated
    not necessarily
    no doubt
    no relief
    no response
    not (?:significantly|appreciably|substantially) \w+
    with(?:out)? or without
    absen\w+ breath sounds
""")
"""Phrases that hold a negation word and deny nothing."""

PRE_UNCERTAIN_CUES = phrases(r"""
    (?:can ?not|can't|could not|not|unable to|difficult to|hard to|cannot be|not be
    +|never be) (?:\w+ ){0,2}(?:exclud\w*|rule\w* out)
    (?:does|do|did) not (?:\w+ )?(?:exclud\w*|rule\w* out)
    not excluding
    (?:may|might|could|can|would|possibly)(?: \w+){0,2} (?:secondary|due|related|compatible
    +|consistent) (?:to|with)
    possib(?:le|ly|ility|ilities)
    may\b
    might\b
    could\b
    suspect\w*
    suspici\w+ (?:for|of)
    suspicion
    questionabl[ey]
    question(?: of|able)?\b
    question\b
    concern(?:ing)?(?: for| of| about)?
    worrisome for
    presum\w+
    probabl[ey]
    maybe(?: secondary to| due to)?
    perhaps
    suggest(?:s|ed|ing|ive)?(?: of)?
    less likely
    differential\b(?: \w+){0,3}
    considerations?\b(?: \w+)?
    consider\b
    favou?r\w*
    equivocal
    raises? the
    potential(?:ly)?
    rule out
    r/o
    evaluat\w+ for
    assess for
    to exclude
    can be seen (?:with|in)
    correlat\w+ (?:\w+ )?(?:for|with)
    symptoms of
    would\b
    if\b
    appears to be
    (?:more )?sensitive (?:in|for|to)
    to (?:identify|evaluate|assess)
    should be considered
""")
"""A doubt about what follows, until a stop."""

POST_UNCERTAIN_CUES = phrases(r"""
    (?:(?:is|are|was|were) )?(?:can ?not|can't|could not|not|difficult to|hard to) (?:be )?(?:\w+ ){0,3}
    +(?:exclud\w*|rule\w* out)
    (?:is|are|remains?|also) (?:\w+ )?(?:possible|possibly|suspected|questioned|questionable|considered
    +|probable)
    (?:is|are|remains?) (?:\w+ )?(?:a |in the )?(?:\w+ )?(?:possibility|consideration|concern
    +|differential|question)
    (?:may|might|could|can) (?:also )?(?:be|have)\b(?! (?:a |an |the )?(?:due|related|second
    +|represent))(?: \w+){0,2}(?:present|this appearance)
    less likely
    suspected
    questioned
    possible(?=\s*(?:$|,|-))
    not (?:well|clearly|optimally|adequately) (?:seen|visuali[sz]ed|evaluated|assessed)
    (?:poorly|incompletely) evaluated
    \?
""")
"""A doubt about what stands before, back to a finite verb or a stop."""

NARROW_UNCERTAIN_CUE = r"or\b|versus\b|vs\b\.?|and/or\b"
"""'atelectasis or pneumonia', unless denied, leaves both open; reaches its two neighbours only."""

PRE_NEGATION_CUES = phrases(r"""
    no (?:\w+ )?(?:\w+ )?(?:evidence|sign|signs|suggestion|indication|findings?|features?|area|areas
    +|focus|foci|appearance)(?: \w+){0,2} (?:of|for|to suggest|suggesting|suggestive of)
    (?:without|absence of|lack of|negative|free|clear(?:ed|ing)?|void|devoid)(?: (?:evidence|signs?
    +|findings?))? (?:of|for|from)\b
    \bno\b
    \bnon?e?\b(?= of)
    without
    nor\b
    neither
    never
    denie[sd]
    denying
    declin(?:es|ed)
    absen(?:t|ce of)
    lack(?:s|ing)\b
    negative for
    -ve for
    fail(?:s|ed)? to (?:reveal|demonstrate|show)
    (?:resolution|disappearance|clearing|removal|drainage|evacuation) of
    interval removal of
    ruled out(?: for)?
    rules out
    rather than
    instead of
    unlikely (?:to|that)?
    inconsistent with
    (?:is|are|was|were|do|does|did|has|have|had|would|should) ?(?:n['o]t)\b
    \bnot\b
    resolved
    exclude[sd]?\b
    w/o
    non-?visuali[sz]ation of
    cannot (?:see|appreciate|identify)
    unable to (?:see|identify)
""")
"""A denial of what follows, until a stop."""

POST_NEGATION_CUES = phrases(r"""
    (?:is|are|was|were|has|have|had|been|now|also|be|being)? ?(?:\w+ )?(?:not
    +|never) (?:been )?(?:\w+ )?(?:seen|present|identified|visuali[sz]ed|evident|demonstrated|appreciated
    +|noted|detected|found|observed|apparent|visible|suspected)
    (?:is|are|was|were|has|have|had) (?:(?!not\b)\w+ )?(?:been )?(?:(?!not\b)\w+ )?(?:ruled out|excluded
    +|absent|negative|resolved|cleared|disappeared|removed|resorbed|evacuated)
    no longer (?:\w+ )?(?:seen|present|identified|visuali[sz]ed|evident|demonstrated|appreciated|noted
    +|apparent|visible|there)
    (?:is|are|was|were) (?:\w+ )?no longer\b
    (?:is|are|was|were|seems?|appears?|considered|felt) (?:\w+ )?unlikely
    unlikely\b
    resolved\b
    [:=]\s*(?:no|none|negative|absent|nil)(?=\s*(?:$|[,;]))
    (?:has|have) (?:been )?removed
    \bremoval\b
    \bremoved\b
    (?:with|interval) (?:interval )?(?:complete )?resolution
    free\b
    negative\b
    absent\b
    declined
    denied
    excluded
    -\s*none\b
    :\s*\(-\)
""")
"""A denial of what stands before, back to a finite verb or a stop."""

TERMINATORS = phrases(r"""
    \b(?:but|however|although|though|yet|nevertheless|except(?:ing|ion)?|aside from|apart from|other than
    +|besides|otherwise|whereas|while|which|who|because|since|despite|status post|s/p|after|following
    +|given|compared (?:to|with)|as well as (?=mild|small|stable|new)|secondary to|due to|again (?:seen
    +|noted)|there (?:is|are|was|were|has|have)|presumably|probably|likely)\b
    (?<!consistent)(?<!compatible)(?<!associated)(?<!keeping)(?<!loss)(?<!congestion)(?<!,)\swith\b
    +(?! (?:associated|or without|(?:\w+ )?(?:displacement|meniscus|visible|callus|air bronchograms?))\b)
    \band (?=(?:the|there|a|an|has|have|had|is|are|was|were|he|she|it|no\b|mild|moderate|small|stable
    +|heart|lungs?|cardiac|normal|unchanged|persistent|will|would|therefore|then)\b)
    ,\s*(?=(?:the|there|this|these|he|she|it|we|heart|lungs|cardiac|and the|and there|has|have|is|was
    +|will|unchanged|again|but|so)\b)
    ,\s*(?=(?:mild|small|moderate|large|tiny|trace|minimal|stable|persistent|bilateral|left|right|chronic
    +|old|low|increased|new|subsegmental|bibasilar|patchy|linear|streaky|some|probable|possible|calcified
    +|tortuous|degenerative|scattered|healed|prior|normal)\b(?![^.;]*(?:\b(?:or|nor)\b|/)))
    [;\n]
    \s[-–]{1,2}\s
""")
"""Where the reach of a cue ends, in either direction."""

FINITE_VERBS = phrases(r"""
    \b(?:is|are|was|were|has|have|had|without|remains?|shows?|tip|appears?|demonstrates?|reveals?)\b
    \bwith\b(?! (?:\w+ )?(?:displacement|meniscus|visible|callus|air bronchograms?)\b)
""")
"""What a backward cue does not reach across."""
