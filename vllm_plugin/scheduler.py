"""AdaptiveScheduler and AdaptiveAsyncScheduler: vLLM's schedulers with a depth of its own for every request."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from adaptive_spec.vllm_plugin.deployment import make_control
from adaptive_spec.vllm_plugin.hook_guard import HookGuard
from adaptive_spec.vllm_plugin.overrides import NONE, Overrides
from adaptive_spec.vllm_plugin.pipeline_batches import startable

if TYPE_CHECKING:
    from adaptive_spec.vllm_plugin.depth_control import DepthControl

logger = logging.getLogger(__name__)


class ConstantDepth:
    """Stands in for the table batch size -> depth of vLLM's Dynamic SD, and says the same for every size.

    With a table in place, vLLM (since 0.24) doesn't pad the first step of a request that needs one token only
    to 1 + K positions; padding would be verified and count as rejected drafts.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def __getitem__(self, batch_size: int) -> int:
        return self.depth


class AdaptiveDepthMixin:
    """Hooks at the five places of a scheduler where depths are decided, put into effect and learned from.

    Each hook only calls :class:`~adaptive_spec.vllm_plugin.depth_control.DepthControl`, and whatever it raises
    is caught: the step then goes on as in stock vLLM.

    Attributes
    ----------
    depth_control : DepthControl or None
        None where there is nothing to adapt: no speculation, or a method without drafts.
    """

    depth_control: DepthControl | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.depth_control = make_control(self)
        self._hooks = HookGuard(self._recover, self._give_up)
        self._stock_lookup = self.dynamic_sd_lookup  # type: ignore[has-type]
        self._constant_lookup = ConstantDepth(self.num_spec_tokens)  # type: ignore[attr-defined]

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Cut the drafts on the table to the step's depths; vLLM takes token budget and KV blocks from them."""
        control = self.depth_control
        if control is not None:
            steers = control.steers and not self._hooks.given_up and self._stock_lookup is None
            self.dynamic_sd_lookup = self._constant_lookup if steers else self._stock_lookup
            self._hooks.call("begin", self._begin, control)
        return super().schedule(*args, **kwargs)  # type: ignore[misc]

    def _begin(self, control: DepthControl) -> None:
        running = self.running  # type: ignore[attr-defined]
        slots = self.max_num_running_reqs - len(running)  # type: ignore[attr-defined]
        control.bring_up_to_date(self.requests, running)  # type: ignore[attr-defined]
        if self.vllm_config.parallel_config.pipeline_parallel_size > 1:  # type: ignore[attr-defined]
            running = startable(running, getattr(self, "current_step", 0) + 1)
        control.begin(
            running,
            self.waiting,  # type: ignore[attr-defined]
            self.max_num_scheduled_tokens,  # type: ignore[attr-defined]
            slots,
        )

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        """Record the step, and tell the drafter how deep to draft for the next.

        This must come before vLLM's own: it advances the requests' counts, and the asynchronous scheduler makes
        as many placeholders as it finds in `num_spec_tokens_to_schedule`.
        """
        control = self.depth_control
        if control is not None:
            if scheduler_output.num_scheduled_tokens:
                live = self.requests  # type: ignore[attr-defined]
                depth = self._hooks.call("scheduled", control.scheduled, scheduler_output, live)
                if depth is not None and control.steers:
                    scheduler_output.num_spec_tokens_to_schedule = depth
            else:
                self._hooks.call("scheduled", control.unscheduled)
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Learn from the results before vLLM's own, which trims the lists of tokens in place."""
        control = self.depth_control
        if control is None:
            return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        carried = bool(scheduler_output.num_scheduled_tokens)
        if carried:
            live = self.requests  # type: ignore[attr-defined]
            self._hooks.call("observe", control.observe, scheduler_output, model_runner_output, live)
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        # Not `requests`: sessions that await their next prompt are among them, and no step follows until it comes.
        busy = self.get_num_unfinished_requests() > 0  # type: ignore[attr-defined]
        self._hooks.call("end", control.end, busy, carried)
        return outputs

    def add_request(self, request: Any) -> None:
        """A request comes in; its overrides were checked where it came from."""
        super().add_request(request)  # type: ignore[misc]
        if self.depth_control is not None:
            self._hooks.call("add", self._add, self.depth_control, request)

    def _add(self, control: DepthControl, request: Any) -> None:
        if self.requests.get(request.request_id) is not request:  # type: ignore[attr-defined]
            return  # a session's next prompt, which waits its turn, or its end, which may have freed it
        params = request.sampling_params
        overrides = NONE
        if params is not None and params.extra_args:
            try:
                overrides = Overrides.parse(params.extra_args, control.controller.max_depth)
            except ValueError as error:  # from a front end that doesn't load plugins
                logger.warning("request %s: %s; it runs without overrides", request.request_id, error)
        control.add(request, overrides)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """The one exit of every request: finished, aborted or failed."""
        if self.depth_control is not None:
            self._hooks.call("remove", self.depth_control.remove, request.request_id)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def shutdown(self) -> None:
        """Let whoever watches the steps finish."""
        if self.depth_control is not None:
            self._hooks.call("close", self.depth_control.close)
        super().shutdown()  # type: ignore[misc]

    def _recover(self, where: str, error: Exception) -> None:
        if self.depth_control is not None:
            self.depth_control.recover(where, error)

    def _give_up(self) -> None:
        if self.depth_control is not None:
            self.depth_control.retire()


class AdaptiveScheduler(AdaptiveDepthMixin, Scheduler):  # type: ignore[misc]
    """vLLM's synchronous scheduler with adaptive depth."""


class AdaptiveAsyncScheduler(AdaptiveDepthMixin, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler with adaptive depth."""
