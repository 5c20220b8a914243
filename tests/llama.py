"""llama.cpp on a GGUF file, as a server in this process; asked over its own HTTP interface."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import xllamacpp


class Llama:
    """A model that is loaded, with keys and values in fp32, and without flash attention, which rounds to f16."""

    def __init__(self, path: Path, context_length: int) -> None:
        options = xllamacpp.CommonParams()
        options.model.path = str(path)
        options.n_ctx = context_length
        options.n_parallel = 1
        options.cpuparams.n_threads = 1
        options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        options.verbosity = -1
        options.warmup = False
        self.server = xllamacpp.Server(options)

    def ask(self, route: str, **fields: Any) -> dict[str, Any]:
        """The answer to a request."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{self.server.listening_address}/{route}", json.dumps(fields).encode(), headers
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as response:
            return dict(json.load(response))

    def encode(self, text: str) -> list[int]:
        return list(self.ask("tokenize", content=text, add_special=False, parse_special=False)["tokens"])

    def decode(self, ids: list[int]) -> str:
        return str(self.ask("detokenize", tokens=ids)["content"])

    def log_probabilities(self, ids: list[int], num_tokens: int) -> dict[int, float]:
        """Of every token that may follow, in nats."""
        settings = {"n_predict": 1, "n_probs": num_tokens, "temperature": 0.0, "cache_prompt": False}
        answer = self.ask("completion", prompt=ids, **settings)
        return {top["id"]: top["logprob"] for top in answer["completion_probabilities"][0]["top_logprobs"]}

    def greedy(self, prompt: str | list[int], num_tokens: int) -> dict[str, Any]:
        """Always the likeliest token: `content`, `tokens_predicted`, `stop_type`."""
        return self.ask("completion", prompt=prompt, n_predict=num_tokens, temperature=0.0, cache_prompt=False)
