"""Writes text.json: what Hugging Face's tokenizers makes of ../data/kjv.txt and of other texts, for `tests/text.rs`.
Run: python text.py (needs tokenizers)."""

import json
import pathlib
import random
import tempfile
import unicodedata

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

here = pathlib.Path(__file__).parent
text = (here.parent / "data" / "kjv.txt").read_text()
byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
random.seed(0)
assigned = [c for c in map(chr, range(0x20000)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
texts = [
    "In the beginning God created the heaven and the earth.",
    "I'll say we've they're it's don't I'm he'd 'tis O'Brien's ''s",
    "  two  spaces\n\n\tand tabs \n x   ",
    "  ",
    "",
    "x" * 5000,
    "naïve café, 日本語 текст ½ ² Ⅷ ⓐ ३४ हिन्दी 🙂🙂 <|endoftext|>",
    "a\u00a0b\u3000c\u2003 d",
    "12abc34 -- !?! 3.14, x²",
] + ["".join(random.choices(assigned + list("  ab1'\n"), k=300)) for _ in range(8)]
result = {"texts": texts}
for size in [500, 4000]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = byte_level, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    entry = {"size": tokenizer.get_vocab_size()}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.model.save(folder)
        merges = (pathlib.Path(folder) / "merges.txt").read_text()
        if size == 500:
            entry |= {"vocab.json": (pathlib.Path(folder) / "vocab.json").read_text(), "merges.txt": merges}
            # The special token is text here.
            plain = Tokenizer(models.BPE.from_file(f"{folder}/vocab.json", f"{folder}/merges.txt"))
            plain.pre_tokenizer, plain.decoder = byte_level, decoders.ByteLevel()
            entry["encoded"] = [plain.encode(t).ids for t in texts]
            entry["decoded"] = plain.decode(list(range(300, 500, 7)), skip_special_tokens=False)
        else:
            entry["last"] = merges.splitlines()[-20:]
    result[str(size)] = entry
(here / "text.json").write_text(json.dumps(result) + "\n")
