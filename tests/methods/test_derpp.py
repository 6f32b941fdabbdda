import copy

import torch

from cler.methods.derpp import DerPP, DerPPOptions
from cler.methods.loss import total
from cler.promises import toy
from cler.streams import Batch


def test_golden_steps(golden, before_golden_steps, assert_after, assert_close):
    fixture = golden("frontier/derpp")
    crops = [fixture[f"{name}_crops"] for name in ("stream", "draw1", "draw2")]
    draws = [slots for both in zip(fixture["draw1"], fixture["draw2"], strict=True) for slots in both]
    method = before_golden_steps(
        DerPP,
        fixture,
        [each for step in zip(*crops, strict=True) for each in step],
        replay_batch=len(draws[0]),
        options=DerPPOptions(alpha=float(fixture["alpha"]), beta=float(fixture["beta"])),
    )
    coming = iter(draws)
    method.buffer.draw_slots = lambda count: next(coming)
    before = copy.deepcopy(method.network.state_dict())
    batches = list(zip(fixture["stream_images"], fixture["stream_labels"], strict=True))
    for step, (pixels, labels) in enumerate(batches):
        terms = method.observe(Batch(pixels, method.views.augmented(pixels), labels))
        assert_close(total(terms), fixture["loss_total"][step])
        assert_close(terms["stream"], fixture["loss_stream"][step])
        assert_close(terms["distillation"], fixture["alpha"] * fixture["loss_mse_unweighted"][step])
        assert_close(terms["replay"], fixture["beta"] * fixture["loss_replay_unweighted"][step])
        offered_pixels, offered_labels, extra = method.offered[step]
        assert torch.equal(offered_pixels, pixels)
        assert torch.equal(offered_labels, labels)
        assert_close(extra["logits"], fixture["stored_logits"][step])
        if step == 0:
            assert_after(method.network, fixture, "one", before)
    assert_after(method.network, fixture, "three", before)


def test_the_first_batch_is_learned_without_replay_and_both_draws_are_new_ones_later():
    run = toy.make_run("derpp", replay_batch=4)
    run.begin_task(0)
    method, drawn = run.method, []
    sample = method.buffer.sample
    method.buffer.sample = lambda count: drawn.append(sample(count)) or drawn[-1]
    batch = run._batch(torch.arange(8))
    assert list(method.observe(batch)) == ["stream"]
    assert not drawn
    terms = [method.observe(batch) for _ in range(5)]
    assert all(list(each) == ["stream", "distillation", "replay"] for each in terms)
    slots = [replay.slots.tolist() for replay in drawn]
    assert len(slots) == 10
    assert all(len(set(each)) == 4 for each in slots)
    assert len({tuple(each) for each in slots}) > 5
