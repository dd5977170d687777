"""The GPU engine: features stay on the device from the first layer to the last.

Layers are cut into stages. Through a stage, a launch a step or one of the resident kernel, no
count leaves the device: launches cover the features that entered it, and what is beyond those
still live leaves at once. Behind a stage the host reads how many are live and sizes the next by
it; early stages are short, since most features die there. A list of live features tells each
step where to read, and it writes them side by side: nothing is copied to make room. In mode
``merge`` equal features are merged behind some stages, on the device.

Weights that do not fit stay in pinned memory of the host and come in windows of some steps, two
at a time on the device: one is copied while the other is used. Features that do not fit come in
batches; the few that survive the first layers are then taken on together.
"""
