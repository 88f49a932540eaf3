"""Questions and predictions of lesson 13, DeepSpeed summarization: each wrong option is a common belief."""

from mpi_classroom.exercises import Option, Prediction, Question

ROUGE_AND_FACTS = Question(
    id="13.q1",
    question="Two models summarize the same articles. A has ROUGE-1 62 %, B has 55 %. What does that say?",
    options=(
        Option(
            "A states more facts correctly than B does",
            reply="That would mean ROUGE looks at facts. It counts words: in section 4 the model before its "
            "last steps had the higher ROUGE-1 and fewer facts right than the oracle extract.",
            belief="rouge-up-facts-right",
        ),
        Option(
            "A's words match those of the references better",
            reply="ROUGE-1 is the F1 of shared words, whatever they say. Words that the reference does not "
            "have lower it. Whether the facts are right needs a count of its own.",
            right=True,
        ),
        Option(
            "A is right about 62 of 100 articles, B 55",
            reply="That would be a share of summaries. ROUGE-1 is a mean over all of them: each summary may "
            "share 62 % of its words with its reference, and each may be wrong.",
            belief="rouge-is-accuracy",
        ),
    ),
    objectives=(1,),
)

UNEQUAL_TOKENS = Question(
    id="13.q2",
    question="Rank 0 has 20 tokens with a mean loss of 1, rank 1 has 60 with a mean loss of 3. What is the "
    "mean loss over all tokens?",
    options=(
        Option(
            "2",
            reply="2 is the mean of the two means. One process would add 20 · 1 and 60 · 3 and divide by 80 "
            "tokens: 2.5. In the mean of means, a token of rank 0 weighs three times as much as one of "
            "rank 1.",
            belief="token-counts-do-not-matter",
        ),
        Option(
            "2.5",
            reply="(20 · 1 + 60 · 3) / 80. Rank 0's part is 20 / 80 = 0.25, rank 1's is 180 / 80 = 2.25, and "
            "the parts add up to it.",
            right=True,
        ),
        Option(
            "4",
            reply="4 is the sum of the two means. The ranks' *parts* add up: each is a sum over the rank's "
            "tokens, divided by all 80 tokens. That gives 0.25 + 2.25.",
            belief="backward-adds-means",
        ),
    ),
    objectives=(2,),
)

ANOTHER_NEWSPAPER = Question(
    id="13.q3",
    question="The small T5 gets most facts of its held-out articles right. Now it reads articles of a real "
    "newspaper. What do you expect?",
    options=(
        Option(
            "the same score, as those articles were held out too",
            reply="That would mean held-out articles stand for all articles. They had new names, but came "
            "from the same generator: the score holds for that generator.",
            belief="held-out-is-everywhere",
        ),
        Option(
            "a few points less, as real sentences are longer",
            reply="That would mean length is the only difference. The T5 was trained on a few hundred words "
            "and six ways to introduce the news; a real article has neither.",
            belief="held-out-is-everywhere",
        ),
        Option(
            "sentences that do not fit, as it knows one generator only",
            reply="A score on held-out articles says how well the model does on articles *of that source*. "
            "Test a model on what you will use it for.",
            right=True,
        ),
    ),
    objectives=(4,),
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
        question="Percent of the facts right, after the last 100 steps?",
        objectives=(3,),
        targets=("skills-come-evenly",),
    ),
    Prediction(
        id="13.p3",
        question="In what percent of those articles does ROUGE-1 prefer fewer facts?",
        objectives=(1,),
        targets=("rouge-up-facts-right",),
    ),
)
