"""News reports and their summaries: a lead and nine facts, each with values only the report knows.

The report gives its facts in a loose order (a fact may swap places with a near neighbour), among sentences that say
nothing. The summary gives the lead and seven or eight of the facts, in the report's order and in words of its own: it
has to find names, places and numbers in the report, and what it says next is hard to foresee.
"""

import random

from specfit.embedded.news_facts import CLOSINGS, FILLERS, GENERAL, OPENERS, TOPICS, Fact
from specfit.embedded.wording import Text, Writer, pattern

FIRST = (
    "Alice", "Brian", "Carmen", "Daniel", "Elena", "Frank", "Gloria", "Hugo", "Irene", "Jack", "Karen", "Lucas",
    "Maria", "Nina", "Oscar", "Petra", "Robert", "Sofia", "Thomas", "Vera",
)  # fmt: skip
LAST = (
    "Adams", "Baker", "Carter", "Dixon", "Evans", "Fisher", "Grant", "Hughes", "Irving", "Jensen", "Keller", "Larsen",
    "Morgan", "Novak", "Owens", "Porter", "Quinn", "Reed", "Stone", "Turner", "Vogel", "Walsh", "Young", "Ziegler",
)  # fmt: skip
TOWNS = (
    "Ashford", "Brookside", "Camden", "Dunmore", "Eastwick", "Fairview", "Glenwood", "Harlow", "Ironbridge",
    "Kingsport", "Lakeside",
    "Milton", "Northam", "Oakdale", "Preston", "Redhill", "Stanford", "Thornbury", "Weston", "Yarrow",
    "Belmont", "Clifton", "Dover", "Easton", "Foxton", "Hampton", "Langley", "Marlow", "Norwood", "Sheldon",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def draw(rng: random.Random) -> Text:
    """One report: its lead, nine facts in report order, one or two fillers; then its summary."""
    topic = rng.choice(TOPICS)
    lead, values = topic.lead, _Values(rng)
    facts = [(fact, values.take(fact)) for fact in _order(rng, topic.facts)]
    lead_values = values.take(lead)
    report = Writer(rng)
    report.sentence("summarise this report: " + lead.report, lead_values)
    gaps = rng.sample(range(len(facts)), rng.randint(1, 2))
    for place, (fact, own) in enumerate(facts):
        report.sentence(fact.report, own)
        if place in gaps:
            report.sentence(rng.choice(FILLERS), {})
    summary = Writer(rng)
    summary.sentence(lead.summary, lead_values)
    dropped = rng.sample(range(len(facts)), rng.randint(1, 2))
    for place, (fact, own) in enumerate(facts):
        if place not in dropped:
            chance = rng.random()
            opener = rng.choice(OPENERS) if chance < 0.15 else ""
            closing = rng.choice(CLOSINGS) if chance > 0.5 else ""
            summary.sentence(opener + fact.summary[:-1] + closing + ".", own)
    return Text(report.text, summary.text, None, tuple(summary.spans))


def _order(rng: random.Random, facts: tuple[Fact, ...]) -> list[Fact]:
    """Nine facts of a topic and the general ones: the usual order of such reports, loosened by up to two places."""
    usual = [fact for pair in zip(facts, GENERAL, strict=True) for fact in pair]
    kept = sorted(rng.sample(range(len(usual)), 9))
    return [usual[i] for i in sorted(kept, key=lambda place: place + rng.uniform(0, 2.5))]


class _Values:
    """Draws names, places and numbers for one report, no value twice."""

    def __init__(self, rng: random.Random):
        self.first, self.last, self.towns = rng.sample(FIRST, 9), rng.sample(LAST, 9), rng.sample(TOWNS, 9)
        self.numbers, self.days = rng.sample(range(11, 100), 24), rng.sample(DAYS, 7)

    def take(self, fact: Fact) -> dict[str, object]:
        """Values for the names used in the fact's two templates: p a person, t a town, d a day, n and m numbers."""
        fresh = {
            "p": lambda: f"{self.first.pop()} {self.last.pop()}",
            "t": self.towns.pop,
            "d": self.days.pop,
            "n": self.numbers.pop,
            "m": self.numbers.pop,
        }
        both = fact.report + fact.summary
        return {name: fresh[name]() for name in fresh if "{" + name + "}" in both}


_PATTERNS = tuple(
    (f"{topic.name}/{place}", pattern(fact.summary[:-1]))
    for topic in TOPICS
    for place, fact in enumerate((topic.lead, *topic.facts))
) + tuple((f"general/{place}", pattern(fact.summary[:-1])) for place, fact in enumerate(GENERAL))


def stated_fact(sentence: str) -> str | None:
    """Which fact a summary sentence states ("storm/3", "general/0"), or None if it is none of the known wordings."""
    return next((name for name, known in _PATTERNS if known.search(sentence)), None)
