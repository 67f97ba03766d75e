"""Fresh, untrained parts of the toy pair in the ordinary Hugging Face formats."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import CLIPImageProcessorPil, LlavaProcessor, PreTrainedTokenizerFast

from recipes.toy.corpus import corpus_text
from recipes.toy.recipe import ToyRecipe

SPECIAL = ("<pad>", "<s>", "</s>", "<image>")
# LLaVA-1.5's form of a chat: USER: <image>, newline, question, ASSISTANT: answer, end of answer.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ 'USER: ' }}{% else %}{{ 'ASSISTANT:' }}{% endif %}"
    "{% for part in message['content'] if part['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}"
    "{% if message['role'] == 'user' %}{{ part['text'] + ' ' }}"
    "{% else %}{{ ' ' + part['text'] + eos_token }}{% endif %}"
    "{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


def build_tokenizer(recipe: ToyRecipe) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on the toy world's conversations; it can encode any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus_text(recipe.tokenizer_conversations), trainer)
    if tokenizer.get_vocab_size() != recipe.vocabulary:
        raise ValueError(f"the corpus gives {tokenizer.get_vocab_size()} tokens, the recipe wants {recipe.vocabulary}")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        extra_special_tokens={"image_token": "<image>"},
        model_max_length=recipe.context,
        clean_up_tokenization_spaces=False,
    )


def build_processor(recipe: ToyRecipe) -> LlavaProcessor:
    """Build tokenizer, image processor and chat template, in the form of a LLaVA checkpoint."""
    return llava_processor(build_tokenizer(recipe), recipe.image_size, recipe.patch_size, CHAT_TEMPLATE)


def llava_processor(
    tokenizer: PreTrainedTokenizerFast, image_size: int, patch_size: int, chat_template: str
) -> LlavaProcessor:
    """Build the processor of a LLaVA whose pictures are squares."""
    images = CLIPImageProcessorPil(
        size={"shortest_edge": image_size},
        crop_size={"height": image_size, "width": image_size},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )
    return LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=patch_size,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat_template,
    )


def special_ids(processor: LlavaProcessor) -> dict[str, int]:
    """Return the ids of the special tokens by name."""
    return {name: processor.tokenizer.convert_tokens_to_ids(name) for name in SPECIAL}
