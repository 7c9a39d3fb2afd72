"""LLM: what a user of vLLM's offline API expects."""

from __future__ import annotations

import pytest
from tiny_llama import EOS, LETTERS, MAX_LENGTH, PLACES, make_tiny_llm, write_tiny_llama

from adaptive_spec.config import TuningConfig
from adaptive_spec.engine.drafters import make_drafter
from adaptive_spec.engine.measure import measure_profile
from adaptive_spec.engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module", params=PLACES)
def llm(folder, request):
    return make_tiny_llm(folder, device=request.param)


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(request):
    yield
    if "llm" in request.fixturenames:
        llm = request.getfixturevalue("llm")
        assert not llm.has_unfinished
        assert not llm._requests
        assert len(llm.controller) == 0
        assert llm.scheduler.pool.num_free == llm.scheduler.pool.num_blocks
        assert llm.runner.fault is None


def drain(llm):
    news = []
    while llm.has_unfinished:
        news += llm.step()
    return news


def test_outputs_come_in_the_order_of_the_prompts(llm):
    prompts = ["abc", "hello", "a b c d", "q"]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (30, 3, 17, 1)]
    outputs = llm.generate(prompts, params)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [30, 3, 17, 1]
    for output in outputs:
        assert output.finished
        assert output.outputs[0].finish_reason == "length"
        assert output.prompt_token_ids == llm.tokenizer.encode(output.prompt)
        assert output.outputs[0].text == llm.tokenizer.decode(output.outputs[0].token_ids)


def test_statistics_add_up(llm):
    output = llm.generate("abcabcabc", GREEDY)[0]
    stats = output.stats
    assert len(stats.depths) == stats.steps
    assert sum(stats.depths) == stats.verified
    assert stats.accepted <= stats.verified <= stats.drafted
    assert 1 + stats.steps + stats.accepted == 40  # the prefill's token, and each step's own beside its drafts
    assert stats.acceptance_length == pytest.approx(39 / stats.steps)


def test_prompts_may_be_tokens_or_one_string(llm):
    text = llm.generate("abc", GREEDY)[0]
    tokens = llm.generate([0, 1, 2], GREEDY)[0]
    assert tokens.outputs[0].token_ids == text.outputs[0].token_ids
    assert tokens.outputs[0].text == text.outputs[0].text
    assert llm.generate([[0, 1, 2]], GREEDY)[0].outputs[0].text == text.outputs[0].text
    assert llm.generate([], GREEDY) == []


def test_chat_uses_the_models_template(llm):
    output = llm.chat([{"role": "user", "content": "abc"}], GREEDY)[0]
    assert output.prompt == "abc."
    assert output.prompt_token_ids == llm.tokenizer.encode("abc.")
    several = llm.chat([[{"role": "user", "content": "abc"}], [{"role": "user", "content": "d"}]], GREEDY)
    assert several[0].outputs[0].token_ids == output.outputs[0].token_ids
    assert several[1].prompt == "d."


def test_n_samples_differ_and_repeat_with_their_seed(llm):
    params = SamplingParams(n=4, max_tokens=30, seed=3)
    first, second = (llm.generate("abc", params)[0] for _ in range(2))
    assert [output.index for output in first.outputs] == [0, 1, 2, 3]
    assert [o.token_ids for o in first.outputs] == [o.token_ids for o in second.outputs]
    assert len({o.text for o in first.outputs}) == 4
    other = llm.generate("abc", SamplingParams(n=4, max_tokens=30, seed=4))[0]
    assert [o.token_ids for o in first.outputs] != [o.token_ids for o in other.outputs]


def test_requests_without_a_seed_draw_one_from_the_engines(folder):
    params = SamplingParams(max_tokens=30)
    texts = [
        [o.outputs[0].text for o in make_tiny_llm(folder, seed=s).generate(["abc"] * 2, params)] for s in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0][0] != texts[0][1]


def find_text(llm) -> str:
    return llm.generate("abc", GREEDY)[0].outputs[0].text


def test_a_stop_string_cuts_the_text_even_amid_accepted_drafts(llm):
    text = find_text(llm)
    for start in range(2, 30, 3):
        stop = text[start : start + 3]
        for include in (False, True):
            params = SamplingParams(
                temperature=0, max_tokens=40, ignore_eos=True, stop=stop, include_stop_str_in_output=include
            )
            output = llm.generate("abc", params)[0].outputs[0]
            end = text.index(stop) + (len(stop) if include else 0)
            assert output.text == text[:end]
            assert (output.finish_reason, output.stop_reason) == ("stop", stop)
            assert stop in llm.tokenizer.decode(output.token_ids)
            assert stop not in llm.tokenizer.decode(output.token_ids[:-1])


def test_stop_tokens_end_the_text_and_are_named(llm):
    text = find_text(llm)
    token = LETTERS.index(text[10])
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop_token_ids=[token])
    output = llm.generate("abc", params)[0].outputs[0]
    at = text.index(text[10])
    assert output.text == text[:at]
    assert output.token_ids[-1] == token
    assert (output.finish_reason, output.stop_reason) == ("stop", token)


def test_eos_ends_the_text_and_min_tokens_bars_it(llm):
    params = SamplingParams(n=40, max_tokens=40, seed=0)
    ended = [o for o in llm.generate("abc", params)[0].outputs if o.finish_reason == "stop"]
    assert ended  # the tiny model ends a text every 25th token or so
    for output in ended:
        assert output.token_ids[-1] == EOS
        assert output.stop_reason is None
        assert output.token_ids.count(EOS) == 1
    late = llm.generate("abc", SamplingParams(n=40, max_tokens=40, min_tokens=25, seed=0))[0].outputs
    assert min(len(o.token_ids) for o in late) > 25
    assert all(EOS not in o.token_ids[:25] for o in late)
    assert any(o.finish_reason == "stop" for o in late)


def test_streamed_pieces_joined_are_what_generate_returns(llm):
    prompts = ["abc", "hello", "abcabcabc"]
    params = [
        SamplingParams(temperature=0.8, max_tokens=40, seed=1, n=2),
        SamplingParams(temperature=0, max_tokens=40, stop=["oo", "dd"]),
        SamplingParams(temperature=0.5, max_tokens=25, seed=2, min_tokens=5),
    ]
    whole = llm.generate(prompts, params)
    text: dict[tuple[str, int], str] = {}
    tokens: dict[tuple[str, int], list[int]] = {}
    last = {}
    yields = 0
    for output in llm.stream(prompts, params):
        yields += 1
        for completion in output.outputs:
            key = (output.prompt, completion.index)
            text[key] = text.get(key, "") + completion.text
            tokens[key] = tokens.get(key, []) + completion.token_ids
        last[output.prompt] = output
    assert yields > 20
    for output in whole:
        assert last[output.prompt].finished
        for completion in output.outputs:
            key = (output.prompt, completion.index)
            assert text[key] == completion.text
            assert tokens[key] == completion.token_ids
            final = last[output.prompt].outputs[completion.index]
            assert final.finish_reason == completion.finish_reason
            assert final.stats.steps <= len(completion.token_ids)


def test_closing_a_stream_aborts_its_requests(llm):
    stream = llm.stream(["abc", "hello"], GREEDY)
    next(stream)
    assert llm.has_unfinished
    stream.close()


def test_a_keyboard_interrupt_leaves_a_usable_engine(llm):
    def interrupt(report):
        if len(report.sequences):
            raise KeyboardInterrupt

    llm.observer = interrupt
    try:
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["abc", "hello"], GREEDY)
    finally:
        llm.observer = None
    assert not llm.has_unfinished
    assert len(llm.generate("abc", GREEDY)[0].outputs[0].token_ids) == 40


def test_requests_step_by_step_and_abort_mid_flight(llm):
    whole = {p: llm.generate(p, GREEDY)[0].outputs[0].text for p in ("abc", "hello")}
    for prompt in (*whole, "doomed"):
        llm.add_request(prompt, prompt, GREEDY)
    with pytest.raises(ValueError, match="'abc' is in use"):
        llm.add_request("abc", "abc", GREEDY)
    news = llm.step() + llm.step()
    llm.abort_request("doomed")
    llm.abort_request("doomed")
    llm.abort_request("never heard of")
    news += drain(llm)
    for prompt, text in whole.items():
        mine = [output for output in news if output.request_id == prompt]
        assert "".join(output.outputs[0].text for output in mine) == text
        assert [output.finished for output in mine] == [False] * (len(mine) - 1) + [True]
    assert not any(output.finished for output in news if output.request_id == "doomed")


def test_requests_added_by_hand_go_on_beside_generate(llm):
    llm.add_request("mine", "hello", GREEDY)
    assert len(llm.generate("abc", SamplingParams(temperature=0, max_tokens=3))[0].outputs[0].token_ids) <= 3
    news = drain(llm)
    assert sum(len(output.outputs[0].token_ids) for output in news) == 40
    assert news[-1].finished


@pytest.mark.parametrize("by", ["generate", "stream"])
def test_what_finishes_beside_generate_is_told_by_the_next_step(llm, by):
    llm.add_request("mine", "hello", SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
    for _ in getattr(llm, by)("abc", GREEDY):
        pass
    assert llm.has_unfinished, "there is something to tell"
    (news,) = llm.step()
    assert (news.request_id, news.finished, len(news.outputs[0].token_ids)) == ("mine", True, 3)
    assert llm.step() == []


def test_streams_side_by_side_end_with_all_their_tokens(llm):
    outer = llm.stream("abc", SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    tokens = list(next(outer).outputs[0].token_ids)
    assert len(llm.generate("hello", GREEDY)[0].outputs[0].token_ids) == 40
    for output in outer:
        tokens += output.outputs[0].token_ids
    assert len(tokens) == 5


def test_drafts_beyond_the_end_of_a_text_are_not_counted(llm, folder):
    output = llm.generate("abc", GREEDY)[0]
    text = output.outputs[0].text
    knows_it = make_drafter("corpus_ngram", texts=[output.prompt_token_ids + output.outputs[0].token_ids])
    fixed = {"policy": {"name": "fixed", "depth": 5}, "guard": {"enabled": False}}
    llm = make_tiny_llm(folder, drafter=knows_it, tuning=TuningConfig.model_validate(fixed))
    beyond = 0
    reports = []
    llm.observer = reports.append
    for start in range(2, 30):
        reports.clear()
        params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=text[start : start + 2])
        output = llm.generate("abc", params)[0]
        stats = output.stats
        assert len(output.outputs[0].token_ids) == 1 + stats.steps + stats.accepted
        assert sum(int(report.kept.sum()) for report in reports) == stats.accepted
        beyond += sum(int(report.accepted.sum()) for report in reports) - stats.accepted
    assert beyond > 0, "the controller is told of all that was accepted"


def test_overrides_of_a_request_reach_the_controller(llm):
    def depths(**extra):
        args = {f"adaptive_spec.{key}": value for key, value in extra.items()}
        params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, extra_args=args)
        return llm.generate("abcabcabcabc", params)[0]

    free = depths()
    assert max(depths(max_depth=2).stats.depths) <= 2
    assert set(depths(off=True).stats.depths) == {0}
    pinned = depths(depth=3).stats.depths
    assert set(pinned) <= {0, 1, 2, 3}  # less only at the end, or where nothing is on offer
    assert pinned.count(3) > len(pinned) // 2
    assert depths(weight=2.5).outputs[0].text == free.outputs[0].text == depths(depth=3).outputs[0].text


def test_policies_can_be_swapped_but_not_amid_requests(llm):
    text = find_text(llm)
    model = llm.model
    try:
        llm.set_policy(TuningConfig(mode="off"))
        off = llm.generate("abc", GREEDY)[0]
        assert off.outputs[0].text == text
        assert off.stats.drafted == 0
        llm.set_policy(TuningConfig.model_validate({"policy": {"name": "fixed", "depth": 3}}))
        assert max(llm.generate("abc", GREEDY)[0].stats.depths) == 3
        llm.add_request("a", "abc", GREEDY)
        with pytest.raises(RuntimeError, match="1 sequences are unfinished"):
            llm.set_policy(None)
        llm.abort_request("a")
        assert llm.model is model
    finally:
        llm.set_policy(None)


def test_the_tuning_may_be_a_file_and_may_leave_evidence_out(folder, tmp_path):
    file = tmp_path / "tuning.yaml"
    file.write_text("max_depth: 4\nguard: {enabled: false}\nacceptance:\n  evidence: [matched_length]\n")
    llm = make_tiny_llm(folder, tuning=file)
    assert llm.controller.max_depth == 4
    assert llm.runner.evidence == ("matched_length",)
    assert llm.generate("abcabc", GREEDY)[0].stats.accepted > 0
    file.write_text("acceptance:\n  evidence: [log_odds]\n")
    with pytest.raises(ValueError, match="asks for 'log_odds'"):
        make_tiny_llm(folder, tuning=file)


def test_without_a_drafter_nothing_is_drafted(folder):
    for drafter in (None, "none"):
        assert make_tiny_llm(folder, drafter=drafter).generate("abcabc", GREEDY)[0].stats.verified == 0


def test_the_prefix_cache_can_be_reset(llm):
    computed = []
    llm.observer = lambda report: computed.append(report.prefill_tokens)
    try:
        for reset in (True, False, True):
            if reset:
                llm.reset_prefix_cache()
            llm.generate("abcde" * 8, SamplingParams(max_tokens=1))
    finally:
        llm.observer = None
    assert computed == [40, 8, 40]


def test_memory_decides_the_number_of_blocks(folder):
    llm = make_tiny_llm(folder, num_kv_blocks=None, kv_cache_memory_bytes=2**20, max_num_seqs=64)
    bytes_per_token = 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, width, float32
    assert llm.scheduler.pool.num_blocks == 2**20 // (16 * bytes_per_token)
    assert llm._cache.num_bytes <= 2**20
    wide = make_tiny_llm(folder, num_kv_blocks=None, max_num_seqs=2)
    assert wide.scheduler.pool.num_blocks == 2 * MAX_LENGTH // 16  # never more than can be used


def test_the_cost_is_measured_only_where_it_is_needed(folder):
    fixed = {"policy": {"name": "fixed", "depth": 2}}
    assert make_tiny_llm(folder, cost=None, tuning=TuningConfig.model_validate(fixed)).controller.cost is None
    assert make_tiny_llm(folder, cost=None, tuning=TuningConfig(mode="off")).controller.cost is None
    llm = make_tiny_llm(folder, cost=None)
    assert llm.controller.cost is not None
    before = llm._pricing.profiles["linear"]
    llm.set_policy(TuningConfig(seed=5))
    assert llm._pricing.profiles["linear"] is before  # timed once


def test_the_profile_times_whole_passes(folder):
    """On a CPU; on a GPU passes are padded, and their sizes are timed."""

    class Clock:
        now = 0.0

        def __call__(self):
            self.now += 1.0
            return self.now

    profile = measure_profile(make_tiny_llm(folder).model, most_positions=40, block_size=16, repeats=1, clock=Clock())
    assert profile.positions.tolist() == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    assert profile.seconds.tolist() == [1.0] * 10
    # By this clock a longer context takes no longer.
    assert profile.context_seconds_per_token == profile.attention_seconds_per_pair == 0.0


def test_every_step_is_reported(llm):
    reports = []
    llm.observer = reports.append
    try:
        output = llm.generate("abcabc", GREEDY)[0]
    finally:
        llm.observer = None
    assert sum(report.num_tokens for report in reports) == 40
    assert reports[0].prefill_tokens == 6
    assert reports[0].decision is None
    assert [int(report.verified[0]) for report in reports[1:]] == output.stats.depths
    for report in reports[1:]:
        assert report.time.positions == 1 + report.drafted[0]
        assert report.time.verify_seconds > 0
        assert report.time.step_seconds >= report.time.verify_seconds + report.time.draft_seconds
        assert report.sequences[0].request.request_id == output.request_id
