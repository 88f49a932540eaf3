"""Exercises of lesson 16, Choose your strategy: a formula, a bug, and a plan for each of four teams."""

from course.lessons.l16_choose_your_strategy.exercise_choose import (
    CHOOSE_CHATBOT,
    CHOOSE_LAPTOP,
    CHOOSE_PATHOLOGY,
    CHOOSE_WEATHER,
)
from course.lessons.l16_choose_your_strategy.exercise_formula import FORMULA
from course.lessons.l16_choose_your_strategy.exercise_links import LINKS
from course.lessons.l16_choose_your_strategy.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l16_choose_your_strategy.quiz import QUESTIONS

EXERCISES = (CHOOSE_CHATBOT, *QUESTIONS, FORMULA, LINKS, CHOOSE_PATHOLOGY, CHOOSE_WEATHER, CHOOSE_LAPTOP)
