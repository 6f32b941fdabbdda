"""Training from Python: a method with and without CLER on the images in the package, and their accuracies as arrays."""

import numpy as np

import cler

settings = {"dataset": "cifar10-sample", "buffer": 200, "width": 2, "batch": 100, "seeds": 2}  # small: a demonstration

alone = cler.train("er-ace", **settings)
with_cler = cler.train("er-ace", regularizer="jigsaw", **settings)  # the second time, these are already done

print(cler.compare(alone, with_cler))  # means, deviations, the gain and its p-value

matrix = with_cler.accuracy["class_il"]  # (seeds, after this task, on that task), NaN for tasks yet to come
print("shape:", matrix.shape)
print("accuracy on the tasks seen so far, after each task:", np.nanmean(matrix, axis=(0, 2)).round(1))
print("final accuracy of each seed:", with_cler.metric("accuracy").round(1))
