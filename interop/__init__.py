"""Models of ours in the formats of others, and theirs in ours. What is what:

names     `huggingface` (weights and settings), `merges` and `tokenizer_json` (vocabularies)
folders   `huggingface_folder` (written and read), `model_card`, `hub` (downloads), `opening` (a run or such a folder)
files     `gguf` (for llama.cpp and Ollama)
"""
