"""Build the built-in model, a small Llama with seeded random weights, and its tokenizer. Its
answers are noise; its prefill, KV cache and timing are those of a real model."""

from pydoc_data import topics
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

# System text, documents, conversation. Documents are in the order given and each is rendered by
# itself, so that equal leading documents give equal tokens.
CHAT_TEMPLATE = (
    "{%- macro message(role, text) %}{{ '<|im_start|>' + role + '\n' + text + '<|im_end|>\n' }}"
    "{%- endmacro %}"
    "{%- set rest = messages %}"
    "{%- if messages and messages[0]['role'] == 'system' %}"
    "{{- message('system', messages[0]['content']) }}{%- set rest = messages[1:] %}"
    "{%- endif %}"
    "{%- if documents %}"
    "{{- '<|im_start|>documents\n' }}"
    "{%- for doc in documents %}"
    "{{- (doc['title'] + '\n' if doc['title'] else '')"
    " + (doc['text'] or doc['content'] or '') + '\n\n' }}"
    "{%- endfor %}"
    "{{- '<|im_end|>\n' }}"
    "{%- endif %}"
    "{%- for one in rest %}"
    "{%- if loop.last and continue_final_message is defined and continue_final_message %}"
    "{{- '<|im_start|>' + one['role'] + '\n' + one['content'] }}"
    "{%- else %}{{- message(one['role'], one['content'] or '') }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)

_SIZES = {
    "small": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4},
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
}
_VOCAB_SIZE = 4096


def build_model(size: str, *, seed: int = 0) -> Any:
    """Return the built-in model in fp32: `small` (3.9 M parameters), or `tiny` for tests."""
    shape = _SIZES[size]
    config = LlamaConfig(
        **shape,
        vocab_size=_VOCAB_SIZE,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        initializer_range=0.08,  # the default 0.02 gives nearly uniform attention
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on Python's own documentation (0.5 s): about 3.4 characters
    per token of English technical prose, decoded without loss."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB_SIZE,
        show_progress=False,
        special_tokens=[END, START, STOP],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(topics.topics.values(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=STOP,
        pad_token=END,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast
