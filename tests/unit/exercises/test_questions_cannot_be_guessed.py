"""Whoever sees only the shapes of the options does no better than chance.

A reader of nothing but shapes learns from the questions of all other lessons which features right options
have (their place, length, punctuation, digits), and guesses those of one lesson.
"""

import math
from collections.abc import Sequence

import pytest

from mpi_classroom.exercises import Question
from mpi_classroom.lessons import exercises_of, lessons

QUESTIONS = {
    lesson: [item for item in exercises_of(lesson) if isinstance(item, Question)] for lesson in lessons()
}
Votes = dict[str, list[int]]  # by feature: right options that have it, options that have it


def shape(question: Question, letter: str) -> set[str]:
    """What can be seen of an option without understanding it."""
    options = question.lettered
    text = options[letter].text
    lengths = sorted(len(option.text) for option in options.values())
    others = [option.text for other, option in options.items() if other != letter]
    seen = {
        f"place {letter}",
        f"length {lengths.index(len(text))} of {len(lengths)}",
        f"colon {':' in text}",
        f"comma {',' in text}",
        f"semicolon {';' in text}",
        f"code {'`' in text}",
        f"digit {any(sign.isdigit() for sign in text)}",
        f"no or nothing {text.lower().startswith(('no', 'nothing', 'none'))}",
    }
    for sign in ":;,":
        seen.add(f"alone with {sign} {sign in text and not any(sign in other for other in others)}")
        seen.add(f"alone without {sign} {sign not in text and all(sign in other for other in others)}")
    return seen


def learn(questions: Sequence[Question]) -> Votes:
    votes: Votes = {}
    for question in questions:
        for letter, option in question.lettered.items():
            for feature in shape(question, letter):
                right, total = votes.setdefault(feature, [0, 0])
                votes[feature] = [right + option.right, total + 1]
    return votes


def guess(question: Question, votes: Votes) -> str:
    """The option whose features right options have most often."""

    def score(letter: str) -> float:
        seen = (votes.get(feature, [0, 0]) for feature in shape(question, letter))
        return sum(math.log((right + 1) / (total + 3)) for right, total in seen)

    return max(question.lettered, key=score)


def expected_by_chance(questions: Sequence[Question]) -> tuple[float, float]:
    """How many guesses are right on average, and the standard deviation."""
    chances = [1 / len(question.options) for question in questions]
    return sum(chances), math.sqrt(sum(p * (1 - p) for p in chances))


def test_shapes_do_not_give_the_answer_away() -> None:
    everything = [question for questions in QUESTIONS.values() for question in questions]
    right = 0
    for lesson, questions in QUESTIONS.items():
        votes = learn([question for other in QUESTIONS if other != lesson for question in QUESTIONS[other]])
        right += sum(guess(question, votes) == question.right for question in questions)
    mean, deviation = expected_by_chance(everything)
    assert right <= mean + 2 * deviation, f"{right} of {len(everything)} guessed; by chance {mean:.0f}"


@pytest.mark.parametrize("question", [q for qs in QUESTIONS.values() for q in qs], ids=lambda q: q.id)
def test_options_of_one_question_are_alike(question: Question) -> None:
    lengths = [len(option.text) for option in question.options]
    assert max(lengths) <= 2.5 * min(lengths) + 15, "one option is much longer or shorter"
    colons = [":" in option.text for option in question.options]
    assert all(colons) or not any(colons), "give all options a reason after a colon, or none"
