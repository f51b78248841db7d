"""Layers of the 130m Mamba-2's shape (width 768, 24 heads of 64 channels, state 128), and a step of its training."""

import torch
from transformers import Mamba2Config, Mamba2ForCausalLM

from lengthen import wrap, zero_state
from lengthen.interventions import Rows


def model_of(layers):
    torch.manual_seed(0)
    config = Mamba2Config(
        hidden_size=768,
        num_hidden_layers=layers,
        num_heads=24,
        head_dim=64,
        state_size=128,
        n_groups=1,
        vocab_size=256,
        chunk_size=64,
        tie_word_embeddings=True,
    )
    model = wrap(Mamba2ForCausalLM(config)).train()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def step(model, optimizer, intervention, number, rows, context):
    ids = torch.randint(256, (rows, context), generator=torch.Generator().manual_seed(number))
    lanes = Rows(torch.arange(rows), torch.zeros(rows, dtype=torch.bool), number, rows, shuffled=True, tokens=context)
    state = intervention.initial_state(lanes, zero_state(model, rows))
    output = model(ids, labels=ids, initial_state=state)
    intervention.observe(lanes, output.final_state.detach())
    output.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
