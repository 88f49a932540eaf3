"""Answers to exercises are judged with their MPI calls checked."""

ANSWER = """def answer(comm):
    b = np.empty(4)
    if comm.rank == 0:
        comm.Send(np.arange(4), 1)
    else:
        comm.Recv(b, 0)
"""


def test_the_reply_names_a_silent_mistake_though_the_check_saw_nothing(check_answer):
    verdict = check_answer(ANSWER)
    assert verdict.state == "wrong"
    assert "rank 0 sent 4 int64 (line 5:" in verdict.text and "4 float64 (line 7:" in verdict.text
