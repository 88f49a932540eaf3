"""Quiz and predictions of lesson 13, DeepSpeed and summaries: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

ROUGE_AND_FACTS = Question(
    id="13.q1",
    question="Two models summarize the same articles. A has ROUGE-1 0.62, B has 0.55. What do you know?",
    options=(
        Option(
            "A states more facts correctly than B",
            reply="For “Ana Belkov opened a mill in Port Sarden on Friday”, the sentence “Ivo Belkov "
            "opened a mill in Port Sarden on Sunday” shares 8 words of 10, and two of its four "
            "facts are wrong.",
            belief="rouge-up-facts-right",
        ),
        Option(
            "A shares more words with the references",
            reply="ROUGE counts words in common, whatever they say. Facts need a count of their own.",
            right=True,
        ),
        Option(
            "A's summaries are true in 62 of 100 cases",
            reply="ROUGE-1 is a mean of words in common: every summary may share 62 of 100 words, and "
            "every one of them may be wrong.",
            belief="rouge-is-accuracy",
        ),
    ),
    objectives=(1,),
)

UNEQUAL_TOKENS = Question(
    id="13.q2",
    question="Rank 0 has 30 tokens, with a mean loss of 1; rank 1 has 10, with a mean loss of 3. What "
    "is the loss of the batch?",
    options=(
        Option(
            "2",
            reply="2 is the mean of the two means. One process would add 30 · 1 and 10 · 3 and divide "
            "by 40 tokens: 1.5. In the mean of means, a token of rank 1 weighs three times as "
            "much as one of rank 0.",
            belief="token-counts-do-not-matter",
        ),
        Option(
            "1.5",
            reply="(30 · 1 + 10 · 3) / 40. The parts of the ranks are 0.75 and 0.75: they add up.",
            right=True,
        ),
        Option(
            "4",
            reply="4 is the sum of the two means. What adds up are the ranks' *parts*: each a sum over "
            "its tokens, divided by all 40 tokens.",
            belief="backward-adds-means",
        ),
    ),
    objectives=(2,),
)

ANOTHER_NEWSPAPER = Question(
    id="13.q3",
    question="The little model of this lesson gets most facts of its held-out articles right. Now it "
    "reads articles of a real newspaper. What do you expect?",
    options=(
        Option(
            "about the same score, because the articles were held out",
            reply="Held-out articles came from the same generator: new names, the same newspaper. The "
            "score says nothing about another one.",
            belief="held-out-is-everywhere",
        ),
        Option(
            "a few points less, because real sentences are longer",
            reply="It knows a few hundred words and six ways in which news begin. A real article has "
            "neither, so nothing that it learnt applies.",
            belief="held-out-is-everywhere",
        ),
        Option(
            "nothing useful, because it learnt one kind of sentence",
            reply="A score on held-out data says how well the model does on that source. Test on what "
            "you will use it for.",
            right=True,
        ),
    ),
    objectives=(1,),
)

QUESTIONS = (ROUGE_AND_FACTS, UNEQUAL_TOKENS, ANOTHER_NEWSPAPER)

PREDICTIONS = (
    Prediction(
        id="13.p1",
        question="Percent of the facts right, before the last 100 steps?",
        objectives=(1,),
        targets=("rouge-up-facts-right",),
    ),
    Prediction(
        id="13.p2",
        question="Percent of the facts right, after them?",
        objectives=(3,),
        targets=("skills-come-evenly",),
    ),
)
