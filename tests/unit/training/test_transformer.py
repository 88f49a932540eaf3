"""The Transformer is causal, has the size its formula says, and equals PyTorch's own layers."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib.training.models import parameter_count
from course_lib.training.transformer import Attention, build_transformer

TOKENS = torch.randint(0, 256, (3, 16), generator=torch.Generator().manual_seed(0))


def test_logits_have_a_row_for_every_token_and_every_parameter_a_gradient() -> None:
    model = build_transformer(seed=0)
    logits = model(TOKENS)
    assert logits.shape == (3, 16, 256)
    F.cross_entropy(logits.flatten(0, 1), TOKENS.flatten()).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_a_token_changes_nothing_before_it() -> None:
    model, changed = build_transformer(seed=0), TOKENS.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 256
    before, after = model(TOKENS), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.isclose(before[:, 9:], after[:, 9:]).all(dim=2).any()


def test_attention_is_that_of_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = Attention(24, 3).double(), nn.MultiheadAttention(24, 3, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key.bias, ours.value.bias]))
    theirs.out_proj.load_state_dict(ours.project.state_dict())
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    expected = theirs(x, x, x, attn_mask=mask, need_weights=False)[0]
    assert torch.allclose(ours(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("width", "layers"), [(64, 2), (32, 5)])
def test_its_size_is_twelve_squares_a_layer_and_the_tables(width: int, layers: int) -> None:
    model = build_transformer(width=width, layers=layers, seed=0)
    a_block = 12 * width**2 + 13 * width  # 9 w of biases, 4 w of norms
    assert parameter_count(model) == layers * a_block + (256 + 128 + 256) * width + 2 * width


def test_the_stack_shares_the_parameters_and_computes_the_same() -> None:
    model = build_transformer(seed=0)
    stack = model.stack()
    assert torch.equal(stack(TOKENS), model(TOKENS))
    assert {id(p) for p in stack.parameters()} == {id(p) for p in model.parameters()}


def test_a_width_that_the_heads_cannot_share_is_refused() -> None:
    with pytest.raises(ValueError, match="a width of 10 cannot be shared by 4 heads"):
        build_transformer(width=10, heads=4, seed=0)
