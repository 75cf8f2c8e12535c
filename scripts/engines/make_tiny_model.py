"""Write a tiny Llama with random weights and a trained tokenizer, offline: 2 MB in ten seconds.

usage: make_tiny_model.py FOLDER [tiny|wide|deep]

`tiny` is the fastest; nearly all of its prefill is attention. `wide` has one layer with large
matrices, so that attention is a quarter of a 4,000-token prefill, closer to a large model. `deep`
has twelve layers: chunk reuse computes the first ones of all tokens.

Needs torch and transformers, which every engine's environment has. The byte-level BPE tokenizer is
trained on text that ships with Python; it encodes any text losslessly.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from pydoc_data import topics

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096
MAX_POSITION = 32_768
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SHAPES = {
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    },
    "wide": {
        "hidden_size": 384,
        "intermediate_size": 4096,
        "num_hidden_layers": 1,
        "num_attention_heads": 6,
    },
    "deep": {
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
    },
}
CHAT_TEMPLATE = (
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


def corpus() -> Iterator[str]:
    yield from topics.topics.values()
    yield torch.__doc__ or ""


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIALS,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=MAX_POSITION,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def main(folder: Path, shape: str = "tiny") -> None:
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        **SHAPES[shape],
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITION,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.08,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
