# SPDX-License-Identifier: Apache-2.0
"""The words with which a report compares a finding with the study before, in one lower-case sentence.

Every line is an alternative; the first change that fits at a place wins. What only looks like a comparison
("better seen", "increased density of the bones") is in NOT_A_CHANGE.
"""

from __future__ import annotations


def phrases(lines: str) -> str:
    """Return a pattern of one alternative per line; a line that begins with "+" continues the one above."""
    joined = ""
    for line in filter(None, map(str.strip, lines.splitlines())):
        joined += line[1:] if line.startswith("+") else f"|{line}"
    return joined[1:]


NOT_A_CHANGE = phrases(r"""
    (?:better|newly|less well|more clearly) (?:seen|visuali[sz]ed|appreciated|demonstrated|evaluated|assessed
    +|depicted|delineated)
    (?:(?:more|less) (?:\w+ )?\w+|worse) (?:on|in|at|within|over|towards) (?:the|both|its|right|left)\b
    improved (?:inspirat\w+|visuali[sz]ation|technique|positioning)
    (?:further|clinical) (?:improvement|progress)
    increased (?:density of the bones|(?:\w+ ){0,3}markings)
    (?:to|until|ensure|confirm|document\w*) (?:\w+ )?(?:resolution|clearing|improvement)
    (?:decreased|reduced|increased|smaller|larger) (?:lung volumes?|inspirat\w+|bone \w+)
    (?:h[ae]modynamically|clinically) stable
    in progress
    (?:on|at|of) the same (?:side|day|level|time)
    reduced (?:in transparency|transparency)
""")

CHANGES: tuple[tuple[str, str], ...] = (
    (
        "better",
        phrases(r"""
        (?:partial\w*|incomplete\w*|near(?:ly)?[ -]complete) (?:interval )?
        +(?:resol|clear|regress|remov)\w+(?: of)?
        (?:marked|significant|substantial|some) (?:interval )?resolution(?: of)?
        resolving
        interval (?:decrease|improvement|reduction|regression)(?: (?:of|in))?
        (?:less|fewer) (?:pronounced|prominent|extensive|dense|severe|conspicuous|marked)
        improv(?:ed|es|ing|ement)(?: (?:of|in))?
        better\b
        (?:regress(?:ed|ing|ive)|regredient|partial regression)\b
        regression(?: of)?
        diminish(?:ed|ing)
        smaller\b
        receding
        """),
    ),
    (
        "resolved",
        phrases(r"""
        complete(?:ly)? (?:interval )?(?:regression|regressed|clearing|cleared|resolution)(?: of)?
        (?:interval )?resolution(?: of)?
        (?:interval )?(?:removal|disappearance)(?: of)?
        resolved\b
        (?:has|have) (?:since |now )?(?:cleared|disappeared)
        (?:has|have) been (?:removed|drained|evacuated|extracted)
        (?:is|are|was|were) removed
        removed\b
        disappeared\b
        no longer (?:\w+ )?(?:seen|visible|present|identified|evident|demonstrated|apparent|visuali[sz]ed)
        no residual
        """),
    ),
    (
        "new",
        phrases(r"""
        newly (?:appeared|developed|seen|visible)?
        new (?:finding|from prior|since \w+ \w+)?
        new\b
        interval (?:development|appearance)(?: of)?
        (?:has|have) (?:now |newly )?(?:developed|appeared)
        de novo
        not (?:seen|present|visible|identified) (?:previously|before|on (?:the )?(?:prior|previous))
        """),
    ),
    (
        "unchanged",
        phrases(r"""
        unchanged
        unaltered
        (?:similar|identical) (?:in|to|as|compared|appearance|when|extent|size)
        stable\b
        static\b
        constant\b
        (?:no|without|little)(?: \w+){0,3} (?:change|interval change)s?\b
        same\b(?! \w)
        (?:is|are|has|have) not(?: \w+)? changed
        persist(?:s|ed|ent|ing|ence)\b(?: of)?
        remains?\b
        unresolved
        (?:once )?again (?:seen|noted|demonstrated|identified|visible|present)
        re-?demonstrat\w+
        """),
    ),
    (
        "worse",
        phrases(r"""
        interval (?:increase|worsening|progression|enlargement|growth)(?: (?:of|in))?
        wors(?:e\b|en\w*)(?: of)?
        progress(?:ed|ing|ive|ively|ion)\b(?: of)?
        progredient\b
        deteriorat\w+
        aggravat\w+
        more (?:pronounced|prominent|extensive|dense|severe|conspicuous|marked)
        larger\b
        (?:has|have) grown
        growing
        """),
    ),
)
"""Change -> its words, in the order in which they are tried."""

SIZED = (
    ("better", r"(?:decreas|reduc)\w+(?: in)?"),
    ("worse", r"(?:increas\w+(?: in)?|enlarging|enlarged since)"),
)
"""Words that also describe ("increased opacity"): they compare only beside COMPARED or after has, have."""

COMPARED = r"\b(?:since|compared|interval|prior|previous\w*|than|interim|former)\b"
HAS = r"(?:has|have|had|is|are)(?: \w+)? $"
_EVERYTHING = (
    r"(?:overall|otherwise|radiological\w*|appearances?|findings|chest|study|exam|examination|picture"
    r"|film|image)"
)
_MOVES = r"(?:unchanged|stable|similar|wors\w+|improv\w+|progress\w+|deteriorat\w+)"
OVERALL = (
    r"^(?:(?:overall|otherwise|essentially),? )?(?:there (?:is|has been) )?"
    r"(?:no|without)(?: \w+){0,4} changes?\b"
    rf"|\b{_EVERYTHING}\b(?: \w+){{0,3}} {_MOVES}"
    rf"|\b(?:unchanged|stable|wors\w+|improv\w+) (?:\w+ ){{0,3}}{_EVERYTHING}\b"
    r"|^(?:interval )?(?:worsening|progression|improvement|deterioration)\b"
)
LONGEST = 12
"""A sentence that names no finding, has no more words and fits OVERALL, speaks of all the findings."""
NOT = (
    r"\b(?:no|not|without|never|neither|nor|lack of|absence of)\b"
    r"(?: (?!and\b|but\b|with\b|which\b|the\b)[\w-]+){0,3} $"
)
SEPARATES = r"[,;:]|\b(?:with|and|or|but|is|are|was|has|have|since|than|of|which)\b"
JOINS = r"^,? ?(?:and|or|,)? (?:(?:associated|bilateral|basilar|bibasilar|right|left|small|mild|moderate) )*$"
