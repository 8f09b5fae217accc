r"""Converts a GGUF file into a Hugging Face folder for `initial.weights` and from_huggingface.

The package transformers dequantises the file, which needs the extra `gguf` (with torch).

Example:
  python -m experiments.convert_gguf --file=SmolLM2-135M-Instruct.Q4_1.gguf --out=smollm2
"""

import importlib.util
from pathlib import Path
from typing import Any

from experiments.command import Parser, execute
from transformer_jax.data.sources.shards import refuse_used_folder
from transformer_jax.errors import InvalidInput, how_to_install, in_one_line


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
    import gguf
    import torch
    import transformers

    from transformer_jax.interop import from_huggingface, to_huggingface

    source: Any = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    of_float32 = {"dtype": torch.float32}
    try:
        reader = gguf.GGUFReader(file)
        their_model = transformers.AutoModelForCausalLM.from_pretrained(**source, **of_float32)
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(**source)
    except Exception as error:  # of many kinds: a cut file, an unknown architecture, ...
        raise InvalidInput(f"--file={file}: cannot be read: {in_one_line(error)}") from error
    refuse_scaling(reader, f"--file={file}")
    special = ("bos_token_id", "eos_token_id", "pad_token_id")
    exported = to_huggingface(
        *from_huggingface(their_model),
        out,
        architecture=type(their_model).__name__,
        settings={name: getattr(their_model.config, name, None) for name in special},
    )
    tokenizer.save_pretrained(out)
    count = sum(array.size for array in exported.state.values())
    print(f"{out}: {exported.config['architectures'][0]}, {count:,} parameters")


def refuse_scaling(reader: Any, where: str) -> None:
    """Refuses scaled rotary positions in a gguf.GGUFReader, which transformers does not read."""
    stated = {key: field.parts[-1].tobytes() for key, field in reader.fields.items()}
    scaled = [key for key, value in stated.items() if ".rope.scal" in key and value != b"none"]
    scaled += [tensor.name for tensor in reader.tensors if tensor.name.startswith("rope_f")]
    if scaled:
        raise InvalidInput(f"{where}: {scaled[0]} is not read; convert the original weights")


if __name__ == "__main__":
    execute(main)
