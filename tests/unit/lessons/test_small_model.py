"""The small language model of lesson 13, as it lies beside the notebooks."""

from transformers import LlamaForCausalLM

from course.tools.small_model import FOLDER, small_model


def test_the_saved_model_has_the_shapes_that_the_program_trains() -> None:
    saved = LlamaForCausalLM.from_pretrained(FOLDER)
    assert isinstance(saved.config.eos_token_id, int)
    made = small_model(saved.config.vocab_size, saved.config.eos_token_id)
    shapes = [{name: each.shape for name, each in model.state_dict().items()} for model in (saved, made)]
    assert shapes[0] == shapes[1]
