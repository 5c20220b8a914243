"""Text → tokens → memory-mapped file → batches. The files, in the order in which a text passes through them:

find    `sources` (what the settings name), `folders`, `download`, `standard_input`
read    `compressed`, `recognize`, `text` (bytes to text), `unicode` (normal form, lines, counts)
encode  `tokenizer` (the interface, characters, bytes), `bpe`, `cuts`, `published`, `saved_tokenizer`, `vocabulary`
        (which one a text gets)
keep    `prepare` (the whole way, and the command), `corpus`, `passes`, `store` (the cache), `dataset` (batches)

`paths`, `durable` (names and safe writing of files) and `memory` (its end) serve all of them, and the rooms to the
right.
"""
