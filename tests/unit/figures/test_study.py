"""The figures of a study: titles and alt texts are chosen from the numbers, and labels are never lost."""

from course.lessons.l07_ddp_on_mnist.figures import study

BARS = {
    "one process": study.Bar(8.0, 0.0, 0.0, study.MEASURED),
    "two ranks": study.Bar(4.0, 0.5, 0.5, study.MEASURED),
    "four ranks": study.Bar(3.0, 0.5, 0.5, study.OVERSUBSCRIBED),
    "eight ranks": study.Bar(1.0, 0.5, 0.5, study.REPLAYED),
}
MPI = study.WAYS["mpi"]
GAINS = {
    "own MPI": study.Gains(MPI, {2: (1.6, study.MEASURED), 4: (1.7, study.OVERSUBSCRIBED)}),
    "own MPI, replayed": study.Gains(MPI, {4: (3.0, study.REPLAYED), 8: (4.0, study.REPLAYED)}),
}


def test_the_fastest_bar_of_the_title_was_measured_and_not_replayed():
    title = study.bars_title(BARS, "cnn")
    assert title == (
        "CNN: the fastest way that was measured is\n"
        "two ranks, 5 s per epoch; of that, 10% is waiting and 10% transfer"
    )


def test_the_best_speedup_of_the_title_was_measured_with_a_core_each():
    assert study.speedup_title(GAINS, "cnn") == (
        "CNN: own MPI on 2 ranks has\na speed-up of 1.60 over one thread, an efficiency of 80%"
    )
    crowded = {"own MPI": study.Gains(MPI, {4: (1.7, study.OVERSUBSCRIBED)})}
    assert "on 4 ranks (oversubscribed) has\na speed-up of 1.70" in study.speedup_title(crowded, "cnn")
