r"""Converts a GGUF file into a Hugging Face folder for `initial.weights` and from_huggingface.

The package transformers dequantises the file, so this needs the extra `gguf` (with torch). Using
the folder does not.

Example:
  python -m experiments.convert_gguf --file=SmolLM2-135M-Instruct.Q4_1.gguf --out=smollm2
"""

import importlib.util
from pathlib import Path
from typing import Any

from experiments.command import Parser, execute
from transformer_jax.data.sources.shards import refuse_used_folder
from transformer_jax.errors import InvalidInput, how_to_install


def main(argv: list[str]) -> None:
    """Reads the arguments and converts the file."""
    parser = Parser("convert_gguf", __doc__)
    parser.add_argument("--file", required=True, help="a .gguf file")
    parser.add_argument("--out", required=True, help="a new folder")
    arguments = parser.read(argv)
    file = Path(arguments.file)
    if not file.is_file():
        raise InvalidInput(f"--file={file}: no such file")
    out = Path(arguments.out)
    refuse_used_folder(out)
    needed = ("torch", "transformers", "accelerate", "gguf")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidInput(f"reading GGUF needs {', '.join(missing)}: {how_to_install('gguf')}")
    import torch
    import transformers

    from transformer_jax.interop import from_huggingface, to_huggingface

    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    their_model = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    special = ("bos_token_id", "eos_token_id", "pad_token_id")
    exported = to_huggingface(
        *from_huggingface(their_model),
        out,
        architecture=type(their_model).__name__,
        settings={name: getattr(their_model.config, name, None) for name in special},
    )
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(**source)
    tokenizer.save_pretrained(out)
    count = sum(array.size for array in exported.state.values())
    print(f"{out}: {exported.config['architectures'][0]}, {count:,} parameters")


if __name__ == "__main__":
    execute(main)
