"""A regularizer, a teacher and a stream of a user's own, which worker processes can import."""

import cler


class Entropy(cler.Regularizer):
    """As much entropy of the outputs as can be."""

    def __init__(self, network, *, weight, **_):
        super().__init__()
        self.weight = weight

    def loss(self, network, raw, augmented, labels, parts=None):
        likely = network(augmented).log_softmax(1)
        return self.weight * (likely.exp() * likely).sum(1).mean()


class Itself(cler.Teacher):
    """The network."""

    name = "itself"

    def after_step(self, network, task):
        pass

    def answering(self, network):
        return network


class Backward(cler.streams.Stream):
    """The last class first."""

    name = "backward"

    def plan(self, labels, images, tasks, class_order):
        plan = super().plan(labels, images, tasks, class_order)
        order, of_class = plan.class_order.flip(0), plan.of_class.flip(0)
        return plan._replace(class_order=order, of_class=plan.of_class.max() - of_class, parts=plan.parts[::-1])
