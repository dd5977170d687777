"""The GPU engine: features stay on the device from the first layer to the last.

Layers are cut into segments. Within a segment there is a launch a step, or one launch of the
resident kernel, and no count leaves the device. Launches cover the features that entered the
segment; thread blocks beyond those that are still live return at once. After a segment the host
reads how many features are live, and sizes the next launches by it. Early segments are short, since
most features die there. A list of live features tells each step where to read, and the step writes
them side by side: nothing is copied to make room. In mode ``merge`` equal features are merged after
some segments, on the device.

Weights that do not fit stay in pinned memory of the host. They come in windows of some steps, two
at a time on the device: one is copied while the other is used. Features that do not fit come in
batches. The few that survive the first layers are then taken on together.
"""
