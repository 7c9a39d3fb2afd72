"""Experiment files: what they hold, and what is said of bad ones."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import yaml
from quick_experiment import data

from adaptive_spec.config import TuningError
from adaptive_spec.replay import cell as cell_module
from adaptive_spec.replay.cell import run_cell
from adaptive_spec.replay.comparison_plan import ComparisonPlan
from adaptive_spec.replay.experiment import Experiment
from adaptive_spec.replay.synthetic import SyntheticAcceptance, constant_acceptance


def written(folder: Path, **changes: object) -> Path:
    path = folder / "e.yaml"
    path.write_text(yaml.safe_dump(data(**changes), sort_keys=False), encoding="utf-8")
    return path


def test_a_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    experiment = Experiment.load(written(tmp_path, seeds=3))
    assert experiment.seeds == (0, 1, 2)
    assert experiment.depths == (0, 1, 4)
    assert experiment.run.warmup == 0.2
    assert [entry.name for entry in experiment.policies][:2] == ["roofline-budget", "turbospec"]
    assert Experiment.parse(data(fixed_depths="all")).depths == (0, 1, 2, 3, 4)


def test_what_was_read_can_be_written_and_read_again() -> None:
    experiment = Experiment.parse(data())
    assert Experiment.parse(experiment.model_dump(mode="json", exclude_none=True)) == experiment


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"machines": None}, r"machines: must be a list of at least one entry, each with file and verify"),
        ({"polices": []}, r"e.yaml:\d+: polices: unknown key; did you mean 'policies'"),
        ({"max_depth": "deep"}, r"max_depth: must be a valid integer, not \"deep\""),
        ({"seeds": []}, r"seeds: "),
        ({"run": {"steps": 10, "tokens": 10}}, r"run: .*bounded once"),
        ({"run": {"stepz": 10}}, r"e.yaml:\d+: run.stepz: unknown key; did you mean 'steps'"),
        ({"policies": []}, "policies: must be a list of at least one policy"),
        ({"policies": ["turbospec", "turbospec"]}, r"policies\[1\]: 'turbospec' is there twice"),
        ({"policies": [{"name": "a", "policy": "none", "tunings": {}}]}, r"policies\[0\].tunings: unknown key; did"),
        ({"traces": [{"path": "x"}]}, r"traces\[0\]: an entry has one of the keys file and synthetic, not"),
        ({"traces": [{"synthetic": {}}]}, "either survival .* or acceptance"),
        ({"traces": [{"synthetic": {"acceptance": 0.5, "sequence": 3}}]}, "synthetic.sequence: unknown key; did"),
        ({"traces": [{"synthetic": {"acceptance": 1.5}}]}, r"traces\[0\].synthetic.acceptance: must be less than"),
        ({"arrivals": [{"closed": 0}]}, r"arrivals\[0\].closed: must be greater than or equal to 1, not 0"),
        ({"arrivals": [{"poisson": 2}], "run": {}}, r"arrivals\[0\]: these arrivals never end; give steps, tokens or"),
        ({"arrivals": [{"bursts": {"mean_on_seconds": 1}}]}, r"bursts.on_requests_per_second: Field required"),
        ({"machines": [{"name": "m", "verify": {"kind": "curves"}}]}, r"machines\[0\].verify"),
        ({"machines": [{"file": "m.json", "draft_idle_share": 0.1}]}, "draft_idle_share belongs to draft_share"),
        ({"fixed_depths": [9]}, r"fixed_depths: must be 'all' or a list of depths 0..4, not \[9\]"),
        ({"bootstrap": {"level": 1.5}}, r"bootstrap.level: must be less than 1"),
    ],
)
def test_what_is_wrong_is_told_with_file_key_and_remedy(tmp_path: Path, changes: dict[str, object], told: str) -> None:
    with pytest.raises(TuningError, match=told) as caught:
        Experiment.load(written(tmp_path, **changes))
    assert "e.yaml" in str(caught.value)


def test_several_faults_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(TuningError) as caught:
        Experiment.load(written(tmp_path, max_depth=0, traces=[{"synthetic": {"acceptance": 2}}], titel="x"))
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"policies": ["turbospeck"]}, "no policy is called 'turbospeck'; did you mean 'turbospec'"),
        ({"policies": ["roofline-budget:horizon=never"]}, "horizon"),
        ({"policies": [{"name": "a", "policy": "roofline-budget", "tuning": {"gard": {}}}]}, "of a: gard: unknown"),
        ({"arrivals": [{"closed": 300}]}, "300 requests at once are over max_num_seqs 256 of machine small"),
        ({"arrivals": [{"closed": [2, 2]}]}, "arrivals '2' are there twice"),
        ({"traces": [{"file": "nowhere.parquet"}]}, "nowhere.parquet: can't be read"),
    ],
)
def test_a_plan_says_what_it_cannot_do(changes: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ComparisonPlan(Experiment.parse(data(**changes)))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tuning": {"policy": {"name": "fixed"}}}, r"e.yaml:\d+: tuning.policy: has no effect here; name the policy"),
        ({"tuning": {"max_depth": 2}}, r"tuning.max_depth: has no effect here; set the experiment's own max_depth"),
        (
            {"policies": [{"name": "a", "policy": "roofline-budget", "tuning": {"max_depth": 2}}]},
            r"policies\[0\].tuning.max_depth: has no effect here; set the experiment's own max_depth",
        ),
        (
            {"policies": [{"name": "a", "policy": "roofline-budget", "tuning": {"policy": {"name": "fixed"}}}]},
            r"policies\[0\].tuning.policy: has no effect here",
        ),
    ],
)
def test_a_setting_that_would_be_dropped_is_refused(tmp_path: Path, changes: dict[str, object], told: str) -> None:
    with pytest.raises(TuningError, match=told) as caught:
        Experiment.load(written(tmp_path, **changes))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("policy", ["dynamic-sd", "clairvoyant", "none", "fixed:2", "best-by-load"])
def test_a_tuning_beside_a_policy_that_has_none_is_refused(policy: str) -> None:
    entry = {"name": "a", "policy": policy, "tuning": {"guard": {"enabled": False}}}
    with pytest.raises(ValueError, match=rf"policies\[1\].tuning: belongs to .* not to '{policy}'; leave it out"):
        ComparisonPlan(Experiment.parse(data(policies=["turbospec", entry])))


def depth_of(policy: str) -> float:
    """Mean depth of a policy at six sequences."""
    plan = ComparisonPlan(Experiment.parse(data(policies=[policy])))
    cell = plan.cell(plan.contestants[-1], plan.traces[0], plan.loads[1], plan.machines[0], 0)
    return float(run_cell(cell.made_from, dict(cell.files))["row"]["mean_depth"])


def test_a_peer_takes_its_makers_settings() -> None:
    assert depth_of("trtllm-schedule:schedule={32: 0}") == 0.0
    assert depth_of("trtllm-schedule:{4: 4, 8: 2}") == pytest.approx(2.0, abs=0.3)
    assert depth_of("trtllm-schedule:schedule={2: 4};min_draft_len=1") == pytest.approx(1.0, abs=0.1)
    assert depth_of("dynamic-sd:schedule=[[1, 64, 3]]") > 2.0
    assert depth_of("hf-confidence:threshold=0.9;num_assistant_tokens=2") < depth_of("hf-confidence")


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("trtllm-schedule:table=3", "'table' is no parameter of 'trtllm-schedule'; its parameters are schedule, min"),
        ("trtllm-schedule:schedule={0: 4}", "batch sizes begin at 1"),
        ("trtllm-schedule:schedule=3", "trtllm-schedule:schedule=3"),
        ("trtllm-schedule:schedule={4", "is no value of schedule"),
        ("hf-confidence:threshold=7", "threshold"),
        ("clairvoyant:1", "it takes no arguments"),
        ("best-by-load:1", "'best-by-load' takes no arguments; leave out '1'"),
        ("without-exploration:1", "'without-exploration' takes no arguments"),
        ("fixed-5", "'fixed-5' is deeper than max_depth 4"),
    ],
)
def test_only_an_unknown_name_is_called_unknown(policy: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        ComparisonPlan(Experiment.parse(data(policies=[policy])))
    assert "no policy is called" not in str(caught.value)


def test_a_key_follows_the_libraries_and_the_code_of_a_policy_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from adaptive_spec.policies.fixed import Fixed\n\n\nclass Theirs(Fixed):\n    pass\n"
    path = tmp_path / "their_policy.py"
    path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    theirs = importlib.import_module("their_policy").Theirs
    monkeypatch.setattr(cell_module, "policy_class", lambda name: theirs)

    def keys() -> set[str]:
        cell_module.policy_digest.cache_clear()
        cell_module.library_versions.cache_clear()
        plan = ComparisonPlan(Experiment.parse(data(policies=["acceptance-bandit", "turbospec"], fixed_depths=[1])))
        return {cell.key for cell in plan.cells(plan.independent)}

    base = keys()
    assert keys() == base
    path.write_text(source + "# edited\n")
    edited = keys()
    assert len(base - edited) == 2 * 2  # one policy's, at each load and seed
    monkeypatch.setattr(cell_module, "version", lambda name: "99.0")
    assert not keys() & edited
    monkeypatch.undo()
    cell_module.policy_digest.cache_clear()
    cell_module.library_versions.cache_clear()


def test_a_plan_has_every_combination_once() -> None:
    plan = ComparisonPlan(Experiment.parse(data()))
    cells = plan.cells(plan.independent)
    assert len(cells) == 2 * 2 * (3 + 5)  # loads, seeds, fixed depths and the others but best-by-load
    assert len({cell.key for cell in cells}) == len(cells)
    assert [contestant.name for contestant in plan.tabled] == ["best-by-load"]


def test_a_key_holds_what_the_numbers_depend_on_and_no_names() -> None:
    def keys(**changes: object) -> list[str]:
        plan = ComparisonPlan(Experiment.parse(data(**changes)))
        return [cell.key for cell in plan.cells(plan.independent)]

    base = keys()
    assert keys(title="other", bootstrap={"draws": 300}) == base
    renamed = data()["traces"]
    renamed[0]["name"] = "another"
    assert keys(traces=renamed) == base
    for changes in (
        {"run": {"steps": 41}},
        {"run": {"steps": 40, "warmup": 0.1}},
        {"split": {"seed": 1}},
        {"service_level": {"tpot_seconds": 0.1}},
        {"max_depth": 5},
        {"traces": [{"synthetic": {"acceptance": 0.61, "sequences": 8, "output_tokens": 24}}]},
    ):
        assert not set(keys(**changes)) & set(base), changes


def test_a_key_follows_a_files_content_and_not_its_place(tmp_path: Path) -> None:
    made = SyntheticAcceptance(constant_acceptance(0.6, 4), "test")
    made.trace(6, 20, seed=0).save(tmp_path / "a.parquet")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes())

    def keys(path: Path) -> list[str]:
        plan = ComparisonPlan(Experiment.parse(data(traces=[{"file": str(path)}])))
        return [cell.key for cell in plan.cells(plan.independent)]

    base = keys(tmp_path / "a.parquet")
    assert keys(tmp_path / "other" / "b.parquet") == base
    made.trace(6, 20, seed=1).save(tmp_path / "a.parquet")
    assert not set(keys(tmp_path / "a.parquet")) & set(base)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, traces=[{"file": "t/x.parquet"}], arrivals=[{"azure": "a.csv"}])
    experiment = Experiment.load(path)
    assert experiment.traces[0].file == tmp_path / "t" / "x.parquet"  # type: ignore[union-attr]
    assert experiment.arrivals[0].azure == tmp_path / "a.csv"  # type: ignore[union-attr]


def test_a_policys_tuning_replaces_the_experiments_key_by_key() -> None:
    experiment = Experiment.parse(
        data(
            tuning={"exploration": {"share": 0.02}, "guard": {"enabled": False}},
            policies=[{"name": "a", "policy": "roofline-budget", "tuning": {"exploration": {"floor_share": 0.005}}}],
        )
    )
    tuning = experiment.tuning_of(experiment.policies[0])
    assert (tuning.exploration.share, tuning.exploration.floor_share) == (0.02, 0.005)
    assert not tuning.guard.enabled
    assert tuning.max_depth == 4


def test_a_model_file_of_a_machine_counts_by_its_content(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 64,
              "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
              "vocab_size": 1000}  # fmt: skip
    roofline = {"kind": "roofline", "hardware": "H200-SXM", "model": "config.json"}
    keys = []
    for folder, layers in (("a", 2), ("b", 2), ("c", 3)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
        path = written(tmp_path / folder, machines=[{"name": "m", "verify": roofline}])
        plan = ComparisonPlan(Experiment.load(path))
        keys.append([cell.key for cell in plan.cells(plan.independent)])
    assert keys[0] == keys[1] != keys[2]


def test_a_file_of_arrivals_is_replaced_by_the_one_that_is_named() -> None:
    experiment = Experiment.parse(data(arrivals=[{"closed": 2}, {"azure": "a.csv", "time_scale": 0.5}]))
    changed = experiment.with_azure(Path("mine.csv"))
    assert changed.arrivals[0] == experiment.arrivals[0]
    assert changed.arrivals[1].azure == Path("mine.csv")  # type: ignore[union-attr]
    assert changed.arrivals[1].time_scale == 0.5  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"no arrivals in Azure's format that mine.csv could stand for"):
        Experiment.parse(data()).with_azure(Path("mine.csv"))


def test_a_policy_may_believe_another_curve_than_the_machines() -> None:
    flat = {"kind": "curve", "ms_by_positions": {"1": 5.0, "4000": 5.0}}
    entries = [{"name": "all free", "policy": "roofline-budget", "believed": flat}, "roofline-budget"]
    unguarded = {"guard": {"enabled": False}}
    plan = ComparisonPlan(Experiment.parse(data(policies=entries, tuning=unguarded)))
    believing, own = plan.contestants[-2:]
    assert (believing.kind, own.kind) == ("ablation", "ours")
    assert believing.ablates(own)
    assert not own.ablates(believing)
    load = plan.loads[1]
    cells = [plan.cell(contestant, plan.traces[0], load, plan.machines[0], 0) for contestant in (believing, own)]
    assert cells[0].key != cells[1].key
    depths = [run_cell(cell.made_from, dict(cell.files))["row"]["mean_depth"] for cell in cells]
    assert depths[0] > depths[1]


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"policy": "turbospec", "believed": {"kind": "curve", "ms_by_positions": {"1": 5}}}, "belongs to a policy of"),
        (
            {"policy": "fixed:2", "believed": {"kind": "roofline", "hardware": "B200", "model": "x"}},
            "is a path",
        ),
        ({"policy": "roofline-budget", "believed": {"kind": "curve"}}, "ms_by_positions"),
    ],
)
def test_a_belief_that_cannot_be_held_is_refused(entry: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        ComparisonPlan(Experiment.parse(data(policies=[{"name": "a", **entry}])))


def test_an_ablation_is_one_of_roofline_budget() -> None:
    plan = ComparisonPlan(Experiment.parse(data(policies=["roofline-budget", "acceptance-bandit", "early-stop"])))
    ours, bandit, ablation = plan.contestants[-3:]
    assert ablation.ablates(ours)
    assert not ablation.ablates(bandit)
