"""The hardware table: complete, dense, and helpful when a name is wrong."""

import pytest

from adaptive_spec.cost import HARDWARE, Hardware, hardware


@pytest.mark.parametrize("name", list(HARDWARE))
def test_every_figure_has_a_source(name):
    entry = hardware(name)
    assert set(entry.sources) == {"flops_per_second", "bytes_per_second", "memory_bytes", "launch_seconds"}
    assert all(entry.sources.values())
    assert entry.sources["launch_seconds"].startswith("assumption")


@pytest.mark.parametrize(
    ("name", "teraflops", "terabytes", "gigabytes"),
    [
        ("A100-SXM-80GB", 312, 2.039, 80),
        ("H100-SXM", 989.4, 3.35, 80),
        ("H200-SXM", 989.4, 4.8, 141),
        ("B200", 2250, 8, 180),
        ("MI300X", 1307.4, 5.3, 192),
        ("RTX-4090", 165.2, 1.008, 24),
    ],
)
def test_published_figures(name, teraflops, terabytes, gigabytes):
    entry = hardware(name)
    assert entry.peak("bfloat16") == pytest.approx(teraflops * 1e12)
    assert entry.bytes_per_second == pytest.approx(terabytes * 1e12)
    assert entry.memory_bytes == pytest.approx(gigabytes * 1e9)


def test_names_are_found_whatever_their_spelling():
    assert hardware("h100 sxm") is HARDWARE["H100-SXM"]
    assert hardware("rtx_4090") is HARDWARE["RTX-4090"]
    assert hardware("Generic CPU") is HARDWARE["generic-CPU"]


def test_an_unknown_name_gives_the_nearest():
    with pytest.raises(KeyError, match=r"nearest is 'H100-SXM'.*known are A100"):
        hardware("H100-SXN")


def test_an_unknown_dtype_and_a_bad_figure_are_errors():
    with pytest.raises(ValueError, match=r"A100-SXM-80GB has no peak for dtype 'fp8'.*bfloat16"):
        hardware("A100-SXM-80GB").peak("fp8")
    with pytest.raises(ValueError, match=r"'x': bytes_per_second is nan"):
        Hardware("x", {"bfloat16": 1.0}, float("nan"), 1.0, 0.0, {})
