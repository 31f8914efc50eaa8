"""Words that change what a value says. "5 apples" is 5; "at least 5", "5 or more", "not 5" and "5 hundred" are not."""

from __future__ import annotations

import re

_WORDS = (
    "an|the|this|that|these|those|it|he|she|they|we|you|if|unless|than|then|as|but|and|or|nor|xor|versus|vs|not|no|"
    "never|neither|none|cannot|isn|aren|wasn|can|could|may|might|must|should|would|will|be|is|are|was|were|been|at|on|"
    "by|for|from|to|with|without|about|around|near|over|under|above|below|between|up|off|out|past|within|beyond|more|"
    "less|fewer|greater|larger|smaller|bigger|least|most|minimum|maximum|max|too|also|else|only|instead|except|nearly|"
    "almost|approximately|approx|roughly|circa|maybe|perhaps|possibly|probably|likely|either|both|all|any|every|"
    "another|other|wrong|incorrect|false|untrue|invalid|negative|positive|minus|plus|times|divided|multiplied|modulo|"
    "mod|factorial|power|root|squared|cubed|half|halves|twice|double|triple|thrice|next|before|after|until|since|"
    "unknown|undefined|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|"
    "sixteen|seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|hundreds|"
    "thousand|thousands|million|millions|billion|billions|trillion|trillions|dozen|dozens|score|percent|percentage|"
    "nan|infinity|infinite|ish"
)
_HEDGE = re.compile(rf"(?<![a-zA-Z])(?:{_WORDS})(?![a-zA-Z])", re.IGNORECASE)


def hedged(text: str) -> bool:
    """Whether a text holds one of these words."""
    return _HEDGE.search(text) is not None
