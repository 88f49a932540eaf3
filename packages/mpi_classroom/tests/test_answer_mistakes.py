"""Answers to exercises are judged with their MPI calls checked."""

RIGHT_TYPE, OTHER_TYPE = "np.arange(4.0)", "np.arange(4)"
ANSWER = """def answer(comm):
    b = np.empty(4)
    if comm.rank == 0:
        comm.Send({sent}, 1)
    else:
        comm.Recv(b, 0)
"""


def test_the_reply_names_a_silent_mistake_though_the_check_saw_nothing(check_answer):
    verdict = check_answer(ANSWER.format(sent=OTHER_TYPE))
    assert verdict.state == "wrong"
    assert "rank 0 sent 4 int64 (line 5:" in verdict.text and "4 float64 (line 7:" in verdict.text


def test_an_answer_without_a_mistake_is_right(check_answer):
    assert check_answer(ANSWER.format(sent=RIGHT_TYPE)).state == "right"
