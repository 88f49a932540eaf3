"""Generated news whose summary states who did what, where and when: what the small model of lesson 13 read.

    … Last year, Ana Belkov sold a mill in Port Sarden on Friday. The rain had stopped. …   not the news
    … The mayor announced that Ivo Darsen opened a bridge in Lake Torvik on Monday. …       the news
    … Until Monday nobody had opened a bridge there. …                                      more of it

    summary: Ivo Darsen opened a bridge in Lake Torvik on Monday.

An article reports several events; what a sentence begins with says which one has happened and is new, and
some more sentences speak of that one. The others name other persons, places and days, so a summary is right
only if a model finds the news and copies from it. Names are combinations of a few hundred words. Some
combinations, and some ways to report the news, are in no article: a model can be tested with them.
"""

import random
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product

from course_lib.data.cnn_dailymail import Article

RECIPE = 2  # to be raised with every change of the articles: what was made of them is then made anew
HELD_OUT_SHARE = 5  # one combination of so many is in no article
LEAD = 3  # sentences of the lead, in which the news is rarely reported
EVENTS = 3, 4  # that an article reports, at least and at most
TRIES = 200  # until the choice of pairs begins again
MORE = 3  # sentences that speak of the news, beside the one that reports it
ASIDE = 2, 3  # sentences that report no event, at least and at most
EARLY = 0.1  # the share of articles whose lead reports the news

Pair = tuple[str, str]


def words(*lines: str) -> list[str]:
    """The words in some `lines`."""
    return [word for line in lines for word in line.split()]


def joined(starts: list[str], ends: list[str]) -> list[str]:
    """All names of a start and an end."""
    return [start + end for start, end in product(starts, ends)]


GIVEN_NAMES = words(
    "Ada Ana Bea Cleo Dora Edda Elsa Fay Gita Hana Ida Ines Jana Kaya Lea Lena Mara Mina Nora Olga Petra",
    "Rosa Sana Tara Uma Vera Wanda Yara Abel Axel Boris Carl Emil Enzo Felix Hugo Igor Ivo Jonas Karim Leon",
    "Luca Marco Nils Omar Paul Ravi Yusuf",
)
SURNAMES = joined(words("Bel Dar Fal Gor Hal Kor Lun Mer"), words("kov sen man ini ford ez"))
AREAS = words("North South East West Port Lake New Old")
TOWNS = joined(words("Sar Tor Vel Win Yor Zan"), words("den vik mar by"))
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
DEEDS = words(
    "opened closed bought sold painted repaired visited designed inspected defended photographed rebuilt"
)
THINGS = words(
    "bridge school museum station library harbour theatre mill garden market lighthouse clinic tower stadium"
)

NEWS = (  # what the news begins with
    "The mayor announced that",
    "Officials confirmed that",
    "The police reported that",
    "It is now certain that",
    "Two witnesses agree that",
    "Records of the town show that",
)
OTHER = (  # what an event begins with that is old, wished for, or not true
    "Last year,",
    "A rumour said that",
    "Nobody believes that",
    "Some people had hoped that",
    "In an old film,",
    "It is not true that",
)
CLAUSES = (  # what an event goes on with
    "{who} {deed} in {place} on {day}.",
    "on {day} {who} {deed} in {place}.",
    "in {place} {who} {deed} on {day}.",
    "on {day}, in {place}, {who} {deed}.",
    "{who} {deed}. That was in {place} on {day}.",
    "{who} {deed}. It was {day}, and the place was {place}.",
)
DETAILS = (  # sentences that speak of the news; they follow it
    "{who} had prepared it for a year.",
    "The people of {place} had waited for {who}.",
    "On {day} all of {place} was on its feet.",
    "{who} came to {place} by train.",
    "It rained on {day}, as {who} had feared.",
    "Few people have ever {deed}, and nobody in {place}.",
    "Until {day} nobody had {deed} there.",
    "{who} {deed} with the help of friends.",
)
ASIDES = (  # sentences that report no event
    "The rain had stopped by then.",
    "A large crowd was watching.",
    "Many shops were open late.",
    "The roads were quiet.",
    "Some of the visitors took pictures.",
    "The band played until dark.",
    "Prices have hardly changed since spring.",
    "A meeting about the costs will follow.",
    "Children were given free tickets.",
    "Traffic was slow for several hours.",
    "The newspaper had printed a special page.",
    "{surname} thanked everyone who had helped.",
    "{surname} did not want to answer questions.",
    "A friend of {surname} called it a good day.",
)


@dataclass(frozen=True, slots=True)
class Event:
    """Who did what, where and when."""

    who: str
    deed: str
    place: str
    day: str


def make_news(n: int, *, seed: int) -> list[Article]:
    """`n` articles of some 90 words; the same call returns the same, and a longer one begins with them.

    Each reports some events, one of them the news.
    """
    rng = random.Random(f"news {RECIPE} {seed} train")
    return [make_article(rng, rng.randint(*EVENTS)) for _ in range(n)]


def make_article(rng: random.Random, events: int) -> Article:
    """One article of so many `events`, one of them the news; its details follow it, the rest is anywhere."""
    news, *others = make_events(rng, events)
    opening, clause = rng.choice(FORMS)
    rest = [sentence(event, rng.choice(OTHER), rng.choice(CLAUSES)) for event in others]
    asides = rng.sample(ASIDES, rng.randint(*ASIDE))
    rest += [aside.format(surname=rng.choice([news, *others]).who.split()[1]) for aside in asides]
    rng.shuffle(rest)
    at = rng.randint(min(LEAD, len(rest)) if rng.random() >= EARLY else 0, len(rest))
    after = rest[at:] + [detail.format(**asdict(news)) for detail in rng.sample(DETAILS, MORE)]
    rng.shuffle(after)
    text = " ".join([*rest[:at], sentence(news, opening, clause), *after])
    return Article(text, CLAUSES[0].format(**asdict(news)))


def make_events(rng: random.Random, count: int) -> list[Event]:
    """`count` events; no two have a given name, surname, area, town, deed, thing or day in common."""
    persons = distinct(rng, PERSONS, count)
    deeds = distinct(rng, ACTS, count)
    places = distinct(rng, PLACES, count)
    days = rng.sample(DAYS, count)
    return [
        Event(" ".join(person), f"{deed} a {thing}", " ".join(place), day)
        for person, (deed, thing), place, day in zip(persons, deeds, places, days, strict=True)
    ]


def distinct(rng: random.Random, pairs: Sequence[Pair], count: int) -> list[Pair]:
    """`count` of the `pairs`, no two of which share a word."""
    chosen: list[Pair] = []
    tries = 0
    while len(chosen) < count:
        pair, tries = rng.choice(pairs), tries + 1
        if not any(word in other for word in pair for other in chosen):
            chosen.append(pair)
        elif tries >= TRIES:  # there may be none left that fits
            chosen, tries = [], 0
    return chosen


def sentence(event: Event, opening: str, clause: str) -> str:
    """`event` in one or two sentences."""
    return f"{opening} {clause.format(**asdict(event))}"


def combinations(first: Sequence[str], second: Sequence[str]) -> list[Pair]:
    """The pairs of a word of each that articles may have."""
    return [pair for pair in product(first, second) if not is_held_out(pair)]


def is_held_out(pair: Pair) -> bool:
    """Whether a combination is in no article; the same on every machine."""
    return zlib.crc32(" ".join(pair).encode()) % HELD_OUT_SHARE == 0


PERSONS = combinations(GIVEN_NAMES, SURNAMES)
PLACES = combinations(AREAS, TOWNS)
ACTS = combinations(DEEDS, THINGS)
FORMS = combinations(NEWS, CLAUSES)
