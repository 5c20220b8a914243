"""What the commands stand on: text and settings → a run in its folder → a trained model. The files, by what they serve:

begin  `command_line` (what was asked for), `start` (from which weights, on which text), `runtime`, `processes`
train  `state` (all that changes), `optim`, `muon`, `tracking` and `dashboard` (where to watch), `stopping`, `ending`
keep   `new_run`, `run_folder`, `lock` (one process at a time), `checkpoint`, `archive` (read without trust), `files`
use    `loading` (a trained model), `writing` (text from it), `prompts` and `dialogue` (what is typed); under them
       `generation` (the loop), `choice` (of a token), `decoder` and `row_products` (the model, fast for one position)
"""
