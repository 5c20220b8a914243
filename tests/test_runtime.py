"""Device, precision, threads, compilation, generators; a GPU is what torch says that it is."""

import contextlib
import platform
import subprocess
import sys

import pytest
import torch
from commands import ROOT, call
from torch import nn

from config.load import config_to_yaml, load_config
from config.schema import Config, ModelConfig, RuntimeConfig
from engine.runtime import (
    BF16_FROM_PARAMETERS,
    Runtime,
    choose_runtime,
    compile_model,
    generator_states,
    restore_generator_states,
)
from errors import DeviceError
from model import GPT

LARGE, SMALL = BF16_FROM_PARAMETERS, BF16_FROM_PARAMETERS - 1


@pytest.fixture(autouse=True)
def same_threads():
    """Threads are the process's; other tests are to find them as they were."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def machine(monkeypatch):
    """A function that makes torch answer as on a machine with these parts."""

    def be(*, gpus=0, capability=(9, 0), apple=False, bf16=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: apple)
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": bf16, "amx_bf16": False})

    return be


def choose(num_parameters=LARGE, **settings):
    return choose_runtime(RuntimeConfig(**settings), num_parameters)


def test_auto_takes_cuda_then_mps_then_cpu(machine):
    for parts, kind in (
        ({"gpus": 1, "apple": True}, "cuda"),
        ({"apple": True}, "mps"),
        ({}, "cpu"),
    ):
        machine(**parts)
        assert choose().device == torch.device(kind)


def test_a_gpu_by_number_is_taken_as_asked(machine):
    machine(gpus=2)
    assert choose(device="cuda:1").device == torch.device("cuda", 1)
    assert choose(device="cuda").device == torch.device("cuda")
    assert choose(device="cpu").device == torch.device("cpu")


@pytest.mark.parametrize("device", ["cuda:2", "cuda:9", "cuda:999"])
def test_a_gpu_out_of_range_is_refused_with_those_there_are(machine, device):
    machine(gpus=2)
    with pytest.raises(DeviceError, match=f"'{device}', but this machine has cuda:0, cuda:1; use one"):
        choose(device=device)


@pytest.mark.parametrize(
    ("device", "message"), [("cuda", "no CUDA GPU"), ("cuda:0", "no CUDA GPU"), ("mps", "no Apple GPU")]
)
def test_a_kind_of_device_that_is_not_there_is_refused_with_what_to_use(machine, device, message):
    machine()
    with pytest.raises(DeviceError, match=f"runtime.device is '{device}'.*{message}.*use auto or cpu"):
        choose(device=device)


def test_cuda_computes_in_bf16_where_the_gpu_has_it_and_else_in_scaled_fp16(machine):
    machine(gpus=1, capability=(8, 0))
    assert choose().precision == "bf16"
    machine(gpus=1, capability=(7, 5))
    runtime = choose()
    assert (runtime.precision, runtime.reason) == ("fp16", "this GPU has no bf16")
    assert choose(precision="fp32").precision == "fp32"


def test_bf16_is_refused_by_name_on_a_gpu_without_it(machine):
    machine(gpus=1, capability=(7, 5))
    with pytest.raises(DeviceError, match=r"cuda \(Tesla T4\) has no bf16; use auto, fp16 or fp32"):
        choose(precision="bf16")


def test_a_cpu_computes_in_bf16_where_the_processor_has_it_and_the_model_is_large_enough(machine):
    machine(bf16=True)
    assert choose(LARGE).precision == "bf16"
    assert choose(SMALL).precision == "fp32"
    machine(bf16=False)
    assert choose(LARGE).precision == "fp32"


def test_bf16_on_a_processor_without_it_is_done_as_asked_and_called_slow(machine):
    machine(bf16=False)
    runtime = choose(precision="bf16")
    assert runtime.precision == "bf16"
    assert "slow" in runtime.describe()
    assert choose(precision="fp32").reason == "as asked"


@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("num_parameters", [SMALL, LARGE])
def test_fp16_is_never_used_on_a_cpu_and_that_is_said(machine, bf16, num_parameters):
    machine(bf16=bf16)
    runtime = choose(num_parameters, precision="fp16")
    assert runtime.precision == choose(num_parameters).precision
    assert "fp16 was asked for" in runtime.describe()


@pytest.mark.parametrize("parts", [{}, {"bf16": True}, {"gpus": 2}, {"apple": True}])
@pytest.mark.parametrize("settings", [{}, {"device": "cpu"}, {"compile": True, "threads": 3}])
def test_what_was_chosen_is_chosen_again_from_the_saved_settings(machine, parts, settings, tmp_path):
    machine(**parts)
    runtime = choose(**settings)
    config = Config(runtime=runtime.resolved(RuntimeConfig(**settings)))
    (tmp_path / "config.yaml").write_text(config_to_yaml(config), encoding="utf-8")
    loaded = load_config(tmp_path / "config.yaml")
    assert loaded == config
    assert "auto" not in loaded.runtime.model_dump().values()
    assert None not in loaded.runtime.model_dump().values()
    again = choose_runtime(loaded.runtime, SMALL)
    assert (again.device, again.precision, again.compile, again.threads) == (
        runtime.device,
        runtime.precision,
        runtime.compile,
        runtime.threads,
    )


def test_compile_is_on_for_cuda_only_unless_it_is_asked_for(machine):
    machine(gpus=1)
    assert choose().compile
    assert not choose(device="cpu").compile
    assert choose(device="cpu", compile=True).compile
    assert not choose(compile=False).compile


def test_threads_are_set_only_when_given(machine):
    machine()
    torch.set_num_threads(2)
    assert choose().threads == 2
    assert choose(threads=1).threads == 1
    assert torch.get_num_threads() == 1


def test_the_choice_is_one_line_with_its_reason(machine):
    machine(bf16=True)
    assert choose(threads=1).describe() == "cpu, 1 thread, bf16 (this processor has bf16)"
    machine(gpus=1)
    assert choose().describe() == "cuda (Tesla T4), bf16, compiled (this GPU has bf16)"


@pytest.mark.parametrize(
    ("device", "precision", "scales"),
    [("cuda", "fp16", True), ("cuda", "bf16", False), ("cuda", "fp32", False), ("cpu", "bf16", False)],
)
def test_only_fp16_on_cuda_scales_its_gradients(machine, device, precision, scales):
    machine(gpus=1)
    runtime = Runtime(torch.device(device), precision, False, 1, "")
    assert runtime.make_scaler().is_enabled() == scales


def test_autocast_computes_products_in_the_precision_and_leaves_weights_alone():
    layer, x = nn.Linear(4, 4), torch.ones(1, 4)
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        with Runtime(torch.device("cpu"), precision, False, 1, "").autocast():
            assert layer(x).dtype == dtype
    assert layer.weight.dtype == torch.float32


def test_restored_generators_drop_the_same_activations_again():
    cpu = torch.device("cpu")
    dropout, x = nn.Dropout(0.5), torch.ones(64)
    states = generator_states(cpu)
    first, second = dropout(x), dropout(x)
    assert not torch.equal(first, second)
    restore_generator_states(states, cpu)
    assert torch.equal(dropout(x), first)
    assert torch.equal(dropout(x), second)


CPU_COMPILED = Runtime(torch.device("cpu"), "fp32", True, 1, "")


def tiny_model():
    torch.manual_seed(0)
    config = ModelConfig(context_length=8, d_model=16, num_heads=2, num_layers=2, dropout=0.5)
    return GPT(config, 11)


class Broken(nn.Module):
    """What torch.compile gives where the compiler fails at the first call: after part of the work, as a real one."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, idx):
        self.model(idx).mean().backward()
        raise RuntimeError("InvalidCxxCompiler: no working compiler found\nand many more lines")


def raise_at_once(model):
    raise ImportError("No module named 'triton'")


@contextlib.contextmanager
def nothing_but_weights_may_change(model):
    """Generators, gradients and mode must be after it as they were before."""
    model.eval()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    state = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), state)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)
    assert not model.training


@pytest.mark.parametrize(
    ("compiler", "reason"), [(raise_at_once, "No module named 'triton'"), (Broken, "no working compiler found")]
)
def test_a_compiler_that_fails_leaves_the_model_as_it_was_with_a_warning(monkeypatch, compiler, reason):
    monkeypatch.setattr(torch, "compile", compiler)
    model = tiny_model()
    with nothing_but_weights_may_change(model), pytest.warns(UserWarning, match=f"{reason}$"):
        assert compile_model(model, CPU_COMPILED, (2, 8)) is model


def test_compiling_tries_one_step_and_leaves_generators_and_gradients_as_they_were(monkeypatch):
    shapes = []

    def compiler(model):
        model.register_forward_pre_hook(lambda module, inputs: shapes.append((tuple(inputs[0].shape), module.training)))
        return nn.Sequential(model)

    monkeypatch.setattr(torch, "compile", compiler)
    model = tiny_model()
    with nothing_but_weights_may_change(model):
        assert isinstance(compile_model(model, CPU_COMPILED, (2, 8)), nn.Sequential)
    assert shapes == [((2, 8), True)]


def test_memory_that_runs_out_while_compiling_is_no_reason_to_go_on_without(monkeypatch):
    def compiler(model):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "compile", compiler)
    with pytest.raises(torch.OutOfMemoryError):
        compile_model(tiny_model(), CPU_COMPILED, (2, 8))


def test_without_compile_the_model_itself_runs():
    model = tiny_model()
    assert compile_model(model, Runtime(torch.device("cpu"), "fp32", False, 1, ""), (2, 8)) is model


def page_faults_of_ten_sums(preparation: str) -> int:
    """Of a process that adds large tensors over and over, once its heap has grown as far as it does."""
    script = (
        "import resource, torch\n"
        "from config.schema import RuntimeConfig\n"
        "from engine.runtime import choose_runtime\n"
        f"{preparation}\n"
        "def add(): torch.ones(1 << 24).add(1).add(1)\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(10): add()\n"
        "before = faults()\n"
        "for _ in range(10): add()\n"
        "print(faults() - before)\n"
    )
    output = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return int(output.stdout)


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or tuple(map(int, platform.libc_ver()[1].split("."))) < (2, 35),
    reason="the setting is glibc's, and before 2.35 it has a limit",
)
def test_memory_that_was_freed_is_used_again() -> None:
    without = page_faults_of_ten_sums("")
    if without < 1000:
        pytest.skip("this system hands out memory in large pieces anyway")
    assert page_faults_of_ten_sums("choose_runtime(RuntimeConfig(device='cpu'), 1)") < 0.1 * without


def test_the_memory_of_a_process_is_the_most_that_it_has_held():
    program = "from engine.runtime import peak_resident_bytes as peak\nfirst = peak()\nheld = b'1' * 2**29; del held\n"
    first, last = call(ROOT, "-c", f"{program}print(first, peak())").out.split()
    if first == "None":
        pytest.skip("this system does not tell")
    assert 10 * 2**20 < int(first) < 2**30
    assert 2**28 < int(last) - int(first) < 2**30


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_the_memory_of_a_gpu_is_the_most_that_torch_has_taken():
    runtime = choose_runtime(RuntimeConfig(device="cuda"), SMALL)
    before = runtime.peak_memory()
    held = torch.ones(2**28 + 1, dtype=torch.uint8, device="cuda")
    taken = torch.cuda.memory_reserved()  # whole blocks, more than the tensors in them
    del held
    assert runtime.peak_memory() >= max(before, taken)
