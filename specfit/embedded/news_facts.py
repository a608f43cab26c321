"""What the reports are about: six topics with a lead and five facts each, and five facts that fit any topic.

Every fact has two templates (see `wording`): how the report says it and how a summary says it. A template starts with
a word, never with a value, so that values always follow a space and keep their one spelling as tokens.
Values: {p} person, {t} town, {d} day, {n} and {m} numbers.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fact:
    """One piece of news: its sentence in the report and its sentence in the summary."""

    report: str
    summary: str


@dataclass(frozen=True, slots=True)
class Topic:
    """A kind of report: a lead and five facts in the order such reports usually have."""

    name: str
    lead: Fact
    facts: tuple[Fact, ...]


TOPICS = (
    Topic(
        "storm",
        Fact(
            "a [heavy|violent|sudden] storm [struck|hit|crossed] {t} on {d}.",
            "[bad weather|a storm|a strong storm] [reached|swept|battered] {t} on {d}.",
        ),
        (
            Fact(
                "the wind [rose|climbed] to {n} miles an hour near {t}.",
                "[gusts|winds|gales] [of|up to|as strong as] "
                "{n} miles an hour were [measured|felt|recorded] [at|near|around] {t}.",
            ),
            Fact(
                "about {n} [homes|houses] were left without power.",
                "[lights went out|power was cut|there was no power] in [some|around|nearly] "
                "{n} [homes|houses|buildings].",
            ),
            Fact(
                "fallen trees [closed|blocked] {n} roads towards {t}.",
                "[trees|branches|broken trees] [shut|blocked|lay across] {n} [roads|streets|lanes] to {t}.",
            ),
            Fact(
                "crews under {p} [worked|laboured] for {m} hours.",
                "[repair|emergency|rescue] teams led by {p} [were busy|toiled|stayed out] for {m} hours.",
            ),
            Fact(
                "a shelter in {t} [took in|received] {n} people.",
                "[some|about|in all] {n} [people|neighbours|guests] [slept|stayed|found beds] "
                "in a [hall|shelter] in {t}.",
            ),
        ),
    ),
    Topic(
        "council",
        Fact(
            "the council of {t} [approved|accepted] a new bridge on {d}.",
            "[plans for|work on|the project of] a bridge in {t} [got a yes|won support|passed] on {d}.",
        ),
        (
            Fact(
                "the vote was {n} to {m}.",
                "[members|councillors|delegates] [decided|voted|settled it] by {n} [votes to|against] {m}.",
            ),
            Fact(
                "the bridge will [link|connect] the market with {t}.",
                "[it|the road|the crossing] [leads|runs|goes] from the [market|square|old market] to {t}.",
            ),
            Fact(
                "engineer {p} [drew|designed] the plans.",
                "[the design|the drawing|the idea] [comes from|is by|belongs to] [engineer|planner] {p}.",
            ),
            Fact(
                "builders [need|expect] {n} months for the work.",
                "[construction|building|the job] [should take|will last|may need] [about|some|up to] {n} months.",
            ),
            Fact(
                "shop owners in {t} [fear|expect] noise for {m} weeks.",
                "[traders|shops|merchants] in {t} [worry about|complain of|dread] {m} weeks of [noise|dust|trouble].",
            ),
        ),
    ),
    Topic(
        "match",
        Fact(
            "the team of {t} [won|took] the cup final on {d}.",
            "[fans|people|supporters] in {t} [celebrated|cheered|enjoyed] a [cup|trophy|title] on {d}.",
        ),
        (
            Fact(
                "captain {p} scored [after|in] {n} minutes.",
                "[a goal|the opener|the first goal] by {p} [came|fell|arrived] [after|within] {n} minutes.",
            ),
            Fact(
                "the visitors from {t} [answered|struck back] in minute {m}.",
                "[guests|rivals|opponents] from {t} [levelled|equalised|drew even] in minute {m}.",
            ),
            Fact(
                "keeper {p} [stopped|saved] a penalty.",
                "[a penalty|one penalty|a late penalty] was [held|caught|kept out] by [goalkeeper|keeper] {p}.",
            ),
            Fact(
                "coach {p} [praised|thanked] the young players.",
                "[kind|warm|proud] words for [the youngsters|the squad|his side] came from [coach|trainer] {p}.",
            ),
            Fact(
                "the next game is [against|with] {t} in {n} days.",
                "[the team|the side|the club] [meets|plays|faces] {t} [in|after] {n} days.",
            ),
        ),
    ),
    Topic(
        "company",
        Fact(
            "a [tool|glass|paper] company opened a plant in {t} on {d}.",
            "[a new|another|a modern] [factory|plant|works] [started up|opened|began work] in {t} on {d}.",
        ),
        (
            Fact(
                "the plant [employs|needs] {n} workers.",
                "[jobs|work|places] for {n} [people|workers|men and women] [were created|are on offer|have come].",
            ),
            Fact(
                "director {p} [cut|held] the ribbon.",
                "[director|manager|chief] {p} [opened the doors|led the ceremony|gave the speech].",
            ),
            Fact(
                "machines [came|were moved] from {t}.",
                "[equipment|machinery|the machinery] was [brought|shipped|carried] [from|over from] {t}.",
            ),
            Fact(
                "the company [makes|ships] {m} tons a week.",
                "[output|production|the yield] is [set at|planned at|near] {m} tons [a|per|every] week.",
            ),
            Fact(
                "trains to {t} will [stop|halt] at the gate {n} times a day.",
                "[railway|rail|train] links to {t} [run|are planned|operate] {n} times [daily|a day|per day].",
            ),
        ),
    ),
    Topic(
        "festival",
        Fact(
            "the [summer|music|autumn] festival of {t} [began|started] on {d}.",
            "[music|dancing|a feast] [filled|took over|lit up] {t} [from|on] {d}.",
        ),
        (
            Fact(
                "singer {p} [gave|played] the first concert.",
                "[a show|the opening|a concert] by [singer|artist|star] {p} [came first|led the way|made the start].",
            ),
            Fact(
                "in all {n} bands [played|performed] on two stages.",
                "[listeners|visitors|crowds] [heard|saw|enjoyed] {n} [bands|groups|acts].",
            ),
            Fact(
                "cooks from {t} [served|prepared] {m} dishes.",
                "[kitchens|cooks|chefs] from {t} [offered|brought|cooked] {m} [dishes|meals|plates].",
            ),
            Fact(
                "a parade with {n} horses [left|marched from] the park.",
                "[riders|a parade|a procession] with {n} horses [crossed|passed|went through] "
                "the [town|streets|centre].",
            ),
            Fact(
                "painter {p} [won|received] the street prize.",
                "[a prize|an award|the medal] [went to|was given to|honoured] [painter|artist] {p}.",
            ),
        ),
    ),
    Topic(
        "research",
        Fact(
            "scientists in {t} [found|dug up] an old ship on {d}.",
            "[an ancient|a wooden|an old] [ship|vessel|wreck] [came to light|was found|turned up] in {t} on {d}.",
        ),
        (
            Fact(
                "professor {p} [leads|heads] the team.",
                "[in charge|at the head|in the lead] is [professor|doctor|researcher] {p}.",
            ),
            Fact(
                "the ship is {n} feet long and {m} feet wide.",
                "[it|the hull|the find] [measures|is|spans] {n} feet by {m} feet.",
            ),
            Fact(
                "coins from {t} [lay|were] in the hull.",
                "[coins|money|silver] from {t} [lay inside|was aboard|had been hidden there].",
            ),
            Fact(
                "divers [raised|lifted] {n} [jars|bowls].",
                "[also|so far|already] {n} [jars|pots|vessels] have been [saved|recovered|brought up].",
            ),
            Fact(
                "the museum of {t} will [show|display] the finds.",
                "[an exhibition|a display|a show] is [planned|coming|promised] at the museum of {t}.",
            ),
        ),
    ),
)
GENERAL = (
    Fact(
        "mayor {p} [spoke|talked] of a special day.",
        "[mayor|town leader] {p} [was pleased|called it special|found warm words].",
    ),
    Fact(
        "the costs are [put|estimated] at {n} million.",
        "[costs|expenses|the bills] [reach|come to|are] [about|roughly|some] {n} million.",
    ),
    Fact(
        "police [counted|reported] {n} onlookers from {t}.",
        "[officers|police] [noted|saw|spoke of] {n} [onlookers|spectators] from {t}.",
    ),
    Fact(
        "reporter {p} [filmed|photographed] the events.",
        "[pictures|photos|images] were [taken|supplied|made] by [reporter|journalist] {p}.",
    ),
    Fact(
        "a meeting [follows|is planned] on {d}.",
        "[talks|further talks|a meeting] will [follow|be held|take place] on {d}.",
    ),
)
FILLERS = (
    "many people [stayed|stood] outside until late.",
    "nobody was [hurt|harmed].",
    "the weather was [mild|cool] for the season.",
    "questions remain [open|unanswered].",
    "more news is [expected|awaited] soon.",
)
OPENERS = ("meanwhile, ", "in addition, ", "besides, ", "later, ", "moreover, ")
CLOSINGS = (
    ", as the [paper|radio|town hall] [says|reports]",
    ", [witnesses|neighbours|officials] [say|told us]",
    ", [to the joy|to the surprise] of [many|everyone]",
    ", [much|a little] [earlier|more|less] than [expected|last year]",
    ", which [pleased|surprised|worried] [many|some] people",
    ", [for the first time|once again] [this year|in years]",
)
