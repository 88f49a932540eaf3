"""Exercises of lesson 15, When things fail: a saver, the guilty rank, a resumed training."""

from course.lessons.l15_when_things_fail.exercise_guilty import FIND_GUILTY
from course.lessons.l15_when_things_fail.exercise_resume import RESUME
from course.lessons.l15_when_things_fail.exercise_save import SAVE
from course.lessons.l15_when_things_fail.quiz import PREDICTIONS as PREDICTIONS
from course.lessons.l15_when_things_fail.quiz import QUESTIONS

EXERCISES = (SAVE, *QUESTIONS, FIND_GUILTY, RESUME)
