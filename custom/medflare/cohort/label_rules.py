# SPDX-License-Identifier: Apache-2.0
"""The words of the rule labeller: what mentions a condition, and what denies or doubts it.

Classes follow the CheXpert labeler (Irvin et al., AAAI 2019; its mention lists are MIT); cues follow NegEx
(Chapman et al. 2001) and its radiology descendants. Everything is matched in lower case, on one sentence.
Where we depart from CheXpert, docs/labels.md says so.
"""

from __future__ import annotations

MENTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # Order matters: at one place the first match wins, so the more specific phrase stands first.
    # Phrases that look like a mention and are none come first of all, with no condition.
    (
        r"pericardial (?:effusion|fluid)s?|joint effusions?|effusions? in the joint|calcified (?:\w+ ){0,3}nodul\w*"
        r"|(?:vertebra\w*|vertebral body|spine|spinal) collapse|massive|mass effect|nipple shadows?"
        r"|(?:contrast|breast|soft tissue) opaci\w*|soft tissue (?:edema|swelling)|(?:lower extremity|pedal) edema"
        r"|kerley\w* (?:\w+ )?lines?|(?:fissur\w*|skin|septal|pleural|mediastinal) lines?"
        r"|body wall edema|opacified vessels?|body mass|muscle mass|increased density of the bones?",
        (),
    ),
    (r"hydro-?\s?pneumothora\w+|hemo-?\s?pneumothora\w+", ("pneumothorax", "pleural effusion")),
    (r"pneumo-?thora\w+|ptx\b", ("pneumothorax",)),
    (
        r"nodular (?:\w+ )?(?:opaci\w+|infiltrat\w+)|mass-?like (?:\w+ ){0,2}opaci\w+|(?:rounded|round) opaci\w+",
        ("lung lesion", "lung opacity"),
    ),
    (
        r"(?:micro)?nodul(?:es?|osis|osities|osity)\b|nodular (?:\w+ )?(?:densit\w+|lesions?|focus|foci|shadows?)"
        r"|(?:rounded|mass-?like) densit\w+|mass(?:es)?\b"
        r"|(?:lung|pulmonary|lobe|cavitary|cavitating|parenchymal|lingular|hilar) lesions?"
        r"|carcinomas?|neoplas\w+|tumou?rs?\b|malignan\w+|lung cancer|pulmonary metasta\w+"
        r"|metasta\w+ (?:to the lungs?|lung disease)",
        ("lung lesion",),
    ),
    (
        r"(?:pleural|apical|pleuro-?\s?parenchymal|parenchymal pleural) (?:\w+ ){0,2}"
        r"(?:thickening|scar\w*|plaques?|calcifications?|fibrosis)"
        r"|(?:apical|pleural) cap(?:s|ping)?\b|fibrothorax|pleural (?:mass|nodul|lesion)\w*"
        r"|thickening of the (?:\w+ ){0,3}pleura|pleural based \w+",
        ("pleural other",),
    ),
    (r"congestive heart failure|heart failure|chf\b|cardiac decompensation", ("edema", "heart failure")),
    (
        r"(?:o?edema)\b|vascular congestion|(?:pulmonary|venous|pulmonary venous|hilar) congestion"
        r"|pulmonary venous hypertension|vascular indistinctness|fluid overload|vascular prominence"
        r"|indistinct(?:ness of the)? (?:pulmonary )?vasc\w+|cephalization|congestive changes?",
        ("edema",),
    ),
    (r"consolidat\w+", ("consolidation",)),
    (r"(?:broncho)?pneumonias?\b|pneumonic|infections?\b|infectious\b|infective\b", ("pneumonia",)),
    (
        r"ate?le(?:c|e)?t[ae]\w+|(?:lobar|lobe|lung|pulmonary|partial|complete|subsegmental|segmental) collapse"
        r"|collapse of the (?:\w+ ){0,3}(?:lobe|lung|lingula)|collapsed lungs?",
        ("atelectasis",),
    ),
    (
        r"effusions?\b|pleural (?:\w+ )?fluid|fluid in the (?:\w+ )?(?:fissures?|pleural spaces?)|ha?emothora\w+"
        r"|fissural fluid",
        ("pleural effusion",),
    ),
    (r"blunt\w+ (?:of )?(?:\w+ ){0,5}(?:costo-?\s?phrenic|cp\b|angle|sulc)\w*", ("blunted angle",)),
    (
        r"(?:costo-?\s?phrenic|cp)(?: \w+){0,2} (?:angles?|sulc\w+)(?: \w+){0,4} blunt\w+",
        ("blunted angle",),
    ),
    (
        r"opaci\w+|infiltrat(?:e|es|ion|ions|ive)\b|air-?\s?space (?:disease|process|densit\w+|changes?)|airspaces? disease"
        r"|decreased translucency|increased densit\w+|(?:focal|patchy|hazy|streaky|basilar|linear) densit\w+"
        r"|interstitial (?:lung )?(?:disease|pattern|prominence|thickening|changes?|abnormalit\w+|process|fibrosis)"
        r"|reticul\w+|parenchymal (?:scar\w*|disease)|peri-?bronchial (?:cuffing|thickening)"
        r"|bronchial wall thickening|scar(?:ring|s)?\b|ground-?\s?glass",
        ("lung opacity",),
    ),
    (r"fractur\w+", ("fracture",)),
    (
        r"pace-?\s?makers?\b|pacers?\b|pacing (?:wires?|leads?|device)|icd\b|aicd\b|defibrillator\w*"
        r"|(?:endotracheal|nasogastric|orogastric|enteric|feeding|tracheostomy|chest|thoracostomy|dobbhoff|dobhoff"
        r"|ng|og|et|drainage|gastric|pleural)[- ](?:tubes?|drains?|catheters?)\b|tubes?\b|drains?\b|pigtails?\b"
        r"|catheters?\b|picc\b|port-?a-?\s?cath\w*|mediports?\b|chest ports?\b|infusion ports?\b|vagal nerve stimulator"
        r"|(?:central|venous|picc|jugular|subclavian|arterial|dialysis|ij|swan-?ganz|support)(?: venous)? (?:lines?|access)\b"
        r"|lines and tubes|(?:left|right)[- ]sided (?:port|lines?)\b|swan-?\s?ganz|tracheostomy\b"
        r"|(?:prosthetic|mechanical|bioprosthetic|artificial|replacement|replaced) (?:\w+ )?valves?"
        r"|valve (?:replacement|prosthes[ie]s|repair)|valvular prosthes[ie]s|(?:support|medical|cardiac|assist|"
        r"stimulator|implanted|electronic|monitoring|conduction|pacing) devices?|devices?\b|hardware\b"
        r"|(?:joint|shoulder|hip|humeral) (?:replacement|prosthes[ie]s|arthroplast\w+)|arthroplast\w+"
        r"|(?:surgical|fixation|orthopa?edic|spinal|metallic|cervical|fusion) (?:\w+ )?(?:plates?|rods?|screws?|coils?)\b"
        r"|screws?\b|stents?\b|balloon pump|iabp\b|lvad\b|cannulas?\b|embolization coils?|leads? (?:tips?|terminat|"
        r"project|in |overl)\w*|dual[- ]lead|stimulator\b|shunt (?:tubing|catheter)|leads\b|generator\b",
        ("support devices",),
    ),
    (r"(?<!no )\bcardio-?\s?megaly|cardiomegaly", ("cardiomegaly",)),
    (
        r"(?:cardiac|heart|ventricular|atrial|chamber) (?:enlargement|dilatation|dilation)|enlargement of (?:the )?"
        r"(?:\w+ ){0,2}(?:heart|cardiac|ventric\w+)(?: silhouette| size| shadow)?|cardiac hypertrophy",
        ("cardiomegaly",),
    ),
    (
        r"(?:mediastinal|cardio-?mediastinal) (?:\w+ )?(?:widening|enlargement)|(?:widening|enlargement) of (?:the )?"
        r"(?:\w+ ){0,2}(?:cardio-?\s?)?mediastin\w+(?: silhouette| contours?)?",
        ("enlarged cardiomediastinum",),
    ),
)
"""(pattern, conditions). "heart failure" and "blunted angle" are no conditions, see labels.py."""

STRUCTURES: tuple[tuple[str, str], ...] = (
    (
        "enlarged cardiomediastinum",
        r"cardio-?\s?mediastin(?:al|um)(?: (?:silhouettes?|contours?|structures?|shadows?|size|borders?|outlines?))?"
        r"|mediastin(?:um|al (?:\w+ (?:and|or) )?(?:silhouettes?|contours?|configuration|structures?|shadows?|size"
        r"|borders?|outlines?|width))",
    ),
    (
        "cardiomegaly",
        r"heart(?! (?:failure|disease|valves?|border|rate|block|transplant|surgery|attack))(?: (?:size|silhouette"
        r"|shadow|contours?))?|cardiac(?: and (?:hilar|mediastinal|aortic))? (?:silhouettes?|size|shadow|contours?"
        r"|outline)|cardiac(?= and mediastinal)",
    ),
    ("lung opacity", r"(?:interstitial|lung|bronchovascular|bronchial) markings?|interstitium"),
)
"""(condition, pattern): body parts whose condition is said by a predicate: "the heart is enlarged"."""

PREDICATES: tuple[tuple[str, str], ...] = (
    # normal | abnormal | unsure: the first in the text after the structure decides.
    (
        "unsure",
        r"(?:upper )?borderline(?: (?:enlarged|size|in size|prominent))?|(?:upper|top) (?:limits?|normal)(?: (?:of )?normal)?"
        r"|top-normal|(?:may|might|could|possibly|probably|suggestion of|difficult to|cannot|not well|suboptimally|"
        r"poorly|obscured|accentuated|exaggerated)(?: \w+){0,3}",
    ),
    (
        "normal",
        r"(?:not|no longer|without|no|nor) (?:\w+ ){0,3}(?:enlarge\w*|widen\w*|prominent|dilat\w+|increased|abnormal\w*)"
        r"|normal\w*|unremarkable|within (?:\w+ )?limits?|negative\b|nonenlarged|not remarkable|clear\b|"
        r"(?:has|have) (?:normalized|returned to normal)",
    ),
    (
        "abnormal",
        r"(?:re)?enlarge\w*|widen(?:ed|ing)|wide\b|dilat\w+|big\b|large(?:r|ly)?\b|prominen\w+|increased?\b|"
        r"thicken\w*|coarse\w*|accentuat\w*|generous|abnormal\w*|globular|cardiomegal\w*|boot",
    ),
    ("unsure", r"stable|unchanged|(?:no|without|not) (?:\w+ ){0,2}chang\w*|similar|obscured"),
)

PSEUDO_CUES = (
    r"not only|no (?:\w+ ){0,3}(?:change|changes|increase|decrease|improvement|progression|worsening|difference)\b"
    r"|without (?:\w+ ){0,3}(?:change|changes|improvement|increase|decrease|progression|difficulty)\b"
    r"|not (?:\w+ ){0,2}(?:chang|increas|decreas|worsen|improv|progress|clear)\w+|not (?:yet )?(?:fully |completely )?resolv\w+"
    r"|(?:partial|incomplete|near|nearly|almost|partially|incompletely|near-complete)[- ](?:\w+ )?(?:resol|clear)\w+"
    r"|gram[- ]negative|no longer (?:\w+ )?intubated|not necessarily|no doubt|no relief|no response"
    r"|not (?:significantly|appreciably|substantially) \w+|with(?:out)? or without|absen\w+ breath sounds"
)
"""Phrases that hold a negation word and deny nothing."""

PRE_UNCERTAIN_CUES = (
    r"(?:can ?not|can't|could not|not|unable to|difficult to|hard to|cannot be|not be|never be) (?:\w+ ){0,2}"
    r"(?:exclud\w*|rule\w* out)|(?:does|do|did) not (?:\w+ )?(?:exclud\w*|rule\w* out)|not excluding"
    r"|possib(?:le|ly|ility|ilities)|may\b|might\b|could\b|suspect\w*|suspici\w+ (?:for|of)|suspicion|questionabl[ey]"
    r"|question(?: of|able)?\b|question\b|concern(?:ing)?(?: for| of| about)?|worrisome for|presum\w+|probabl[ey]|maybe|perhaps"
    r"|suggest(?:s|ed|ing|ive)?(?: of)?|less likely|differential\b(?: \w+){0,3}|considerations?\b(?: \w+)?|consider\b"
    r"|favou?r\w*|equivocal|potential(?:ly)?|rule out|r/o|evaluat\w+ for|assess for|to exclude|versus|vs\.?|and/or"
    r"|can be seen (?:with|in)|correlat\w+ (?:\w+ )?(?:for|with)|symptoms of|would\b|if\b|appears to be|borderline"
)
"""A doubt about what follows, until a comma-free stop (TERMINATORS)."""

POST_UNCERTAIN_CUES = (
    r"(?:can ?not|can't|could not|not|difficult to|hard to) (?:be )?(?:\w+ ){0,3}(?:exclud\w*|rule\w* out)"
    r"|(?:is|are|remains?|also) (?:\w+ )?(?:possible|possibly|suspected|questioned|questionable|considered|probable)"
    r"|(?:is|are|remains?) (?:\w+ )?(?:a |in the )?(?:\w+ )?(?:possibility|consideration|concern|differential|question)"
    r"|(?:may|might|could|can) (?:also )?(?:be|have)\b(?! (?:a |an |the )?(?:due|related|second|represent))"
    r"(?: \w+){0,2}(?:present|this appearance)|less likely|versus|vs\.?|and/or|not (?:well|clearly|optimally|adequately)"
    r" (?:seen|visuali[sz]ed|evaluated|assessed)|(?:poorly|incompletely) evaluated|\?"
)
"""A doubt about what stands before."""

NARROW_UNCERTAIN_CUE = r"or\b"
"""'atelectasis or pneumonia', unless denied, leaves both open; reaches only its two neighbours."""

PRE_NEGATION_CUES = (
    r"no (?:\w+ )?(?:\w+ )?(?:evidence|sign|signs|suggestion|indication|findings?|features?|area|areas|focus|foci|"
    r"appearance)(?: \w+){0,2} (?:of|for|to suggest|suggesting|suggestive of)"
    r"|(?:without|absence of|lack of|negative|free|clear(?:ed|ing)?|void|devoid)(?: (?:evidence|signs?|findings?))?"
    r" (?:of|for|from)\b|\bno\b|\bnon?e?\b(?= of)|without|nor\b|neither|never|denie[sd]|denying|declin(?:es|ed)"
    r"|absen(?:t|ce of)|lack(?:s|ing)\b|negative for|-ve for|fail(?:s|ed)? to (?:reveal|demonstrate|show)"
    r"|(?:resolution|disappearance|clearing|removal|drainage|evacuation) of|interval removal of"
    r"|ruled out(?: for)?|rules out|rather than|instead of|unlikely (?:to|that)?|inconsistent with"
    r"|(?:is|are|was|were|do|does|did|has|have|had|would|should) ?(?:n['o]t)\b|\bnot\b|resolved|exclude[sd]?\b|w/o"
    r"|non-?visuali[sz]ation of|cannot (?:see|appreciate|identify)|unable to (?:see|identify)"
)
"""A denial of what follows, until a stop."""

POST_NEGATION_CUES = (
    r"(?:is|are|was|were|has|have|had|been|now|also|be|being)? ?(?:\w+ )?(?:not|never) (?:been )?(?:\w+ )?(?:seen|present|identified"
    r"|visuali[sz]ed|evident|demonstrated|appreciated|noted|detected|found|observed|apparent|visible|suspected)"
    r"|(?:is|are|was|were|has|have|had) (?:\w+ )?(?:been )?(?:\w+ )?(?:ruled out|excluded|absent|negative|resolved"
    r"|cleared|disappeared|removed|resorbed|evacuated)|no longer (?:\w+ )?(?:seen|present|identified|visuali[sz]ed|evident"
    r"|demonstrated|appreciated|noted|apparent|visible|there)|(?:is|are|was|were) (?:\w+ )?no longer\b"
    r"|(?:is|are|was|were|seems?|appears?|considered|felt) (?:\w+ )?unlikely|unlikely\b|resolved\b|[:=]\s*(?:no|none|negative|absent|nil)\b"
    r"|(?:has|have) (?:been )?removed|\bremoval\b|\bremoved\b|(?:with|interval) (?:interval )?(?:complete )?resolution"
    r"|free\b|negative\b|absent\b|declined|denied|excluded|-\s*none\b|:\s*\(-\)"
)
"""A denial of what stands before, back to a finite verb or a stop."""

TERMINATORS = (
    r"\b(?:but|however|although|though|yet|nevertheless|except(?:ing|ion)?|aside from|apart from|other than|besides"
    r"|otherwise|whereas|while|which|who|because|since|despite|status post|s/p|after|following|given|compared (?:to|with)"
    r"|as well as (?=mild|small|stable|new)|secondary to|due to|again (?:seen|noted)|there (?:is|are|was|were|has|have)"
    r"|presumably|probably|likely)\b"
    r"|(?<!consistent )(?<!compatible )(?<!associated )(?<!keeping )(?<!patient )(?<!\bor )(?<!,)\s\bwith\b"
    r"(?! (?:associated|or without))|\band (?=(?:the|there|a|an|has|have|had|is|are|was|were|he|she|it|no\b|mild|"
    r"moderate|small|stable|heart|lungs?|cardiac|normal|unchanged|persistent|will|would|therefore|then)\b)"
    r"|,\s*(?=(?:the|there|this|these|he|she|it|we|heart|lungs|cardiac|and the|and there|has|have|is|was|will|"
    r"unchanged|again|but|so)\b)"
    r"|,\s*(?=(?:mild|small|moderate|large|tiny|trace|minimal|stable|persistent|bilateral|left|right|chronic|old|low|"
    r"increased|new|subsegmental|bibasilar|patchy|linear|streaky|some|probable|possible|calcified|tortuous|"
    r"degenerative|scattered|healed|prior|normal)\b(?![^.;]*\b(?:or|nor)\b))|[;\n]|\s[-–]{1,2}\s"
)
"""Where the reach of a cue ends, in either direction."""

FINITE_VERBS = (
    r"\b(?:is|are|was|were|has|have|had|with|without|remains?|shows?|tip|appears?|demonstrates?|reveals?)\b"
)
"""What a backward denial does not reach across."""
